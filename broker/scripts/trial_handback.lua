-- Gives a claimed unit back: uncounted when the guardian could not begin (no storage, no key), counted when its worker drains under it.
-- A counted one that committed no checkpoint of its own is a loss. The same nonce may say it again.
-- uses: fc:freed fc:tick fc:unit:* fc:run:* fc:step:* fc:boot:* fc:active:* fc:deadlines fc:delayed fc:alloc:* fc:used:* fc:offer:* fc:free fc:bucket:* fc:buckets fc:attempts:* fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:leftovers fc:tail:* fc:unacked fc:unacked_index fc:limits fc:poolused fc:shares fc:timeouts fc:weights fc:attention:* fc:hosts:* fcq.* fc:pools fc:reserve fc:shapes fc:total fc:waiting fc:waiting:* fc:repairs
-- args: unit epoch nonce reason delay_ms counted
-- returns: OK pending|failed|cancelled | LOST state
-- include: base tokens flow room gang queue host seat reserve repair place lose
local unit, epoch, nonce, reason, delay_ms, counted = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'
local key, now = 'fc:unit:' .. unit, now_ms()
local record = as_map(redis.call('HGETALL', key))
if record.finished == epoch .. '/' .. nonce then return { 'OK', record.state } end
if record.state ~= 'running' or record.epoch ~= epoch or record.nonce ~= nonce then return { 'LOST', record.state or '' } end
local run, step, index = split_unit(unit)
redis.call('HSET', key, 'finished', epoch .. '/' .. nonce)
give_back(unit, record, true)
leave_rows(unit)
local is_over, end_reason = false, nil
if counted then
  local cause = { kind = 'preempted', text = reason }
  record_attempt(unit, {
    attempt = tonumber(record.attempts), epoch = tonumber(epoch), nonce = nonce, boot = record.boot, worker = record.worker,
    started_ms = tonumber(record.started_ms), ended_ms = now, outcome = 'preempted', cause = cause,
  })
  local saved = record.checkpoint and cjson.decode(record.checkpoint) or {}
  if saved.epoch ~= tonumber(epoch) or saved.nonce ~= nonce then is_over, end_reason = count_loss(unit, run, step) end
  if is_over then redis.call('HSET', key, 'cause', cjson.encode(cause)) end
elseif redis.call('HINCRBY', key, 'attempts', -1) == 0 then
  redis.call('HDEL', key, 'first_started_ms')
end
if is_cancelled(run, record) then
  end_unit(unit, run, step, 'running', 'cancelled', 'cancelled', now)
  check_step(run, step, now)
  return { 'OK', 'cancelled' }
end
if is_over then
  end_unit(unit, run, step, 'running', 'failed', end_reason, now)
  check_step(run, step, now)
  return { 'OK', 'failed' }
end
back_to_pending(unit, run, step, index, 'running', reason, now, delay_ms)
return { 'OK', 'pending' }
