-- Gives a claimed unit back uncounted: the guardian could not begin (no storage, no key) or its worker drains.
-- uses: fc:unit:* fc:run:* fc:step:* fc:boot:* fc:active:* fc:deadlines fc:delayed fc:alloc:* fc:used:* fc:offer:* fc:free fc:bucket:* fc:buckets fc:attempts:* fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:leftovers fc:tail:*
-- args: unit epoch nonce reason delay_ms counted
-- returns: OK state | LOST state
-- include: base tokens flow place lose
local unit, epoch, nonce, reason, delay_ms, counted = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'
local key, now = 'fc:unit:' .. unit, now_ms()
local record = as_map(redis.call('HGETALL', key))
if record.finished == epoch .. '/' .. nonce then return { 'OK', record.state } end
if record.state ~= 'running' or record.epoch ~= epoch or record.nonce ~= nonce then return { 'LOST', record.state or '' } end
local run, step, index = split_unit(unit)
redis.call('HSET', key, 'finished', epoch .. '/' .. nonce)
if counted then
  record_attempt(unit, {
    attempt = tonumber(record.attempts), epoch = tonumber(epoch), nonce = nonce, boot = record.boot, worker = record.worker,
    started_ms = tonumber(record.started_ms), ended_ms = now, outcome = 'preempted', cause = { kind = 'preempted', text = reason },
  })
else
  redis.call('HINCRBY', key, 'attempts', -1)
end
unbook(record.boot, unit, epoch)
store_free(record.boot)
if redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' or record.wanted == 'cancel' then
  end_unit(unit, run, step, 'running', 'cancelled', 'cancelled', now)
  check_step(run, step, now)
  return { 'OK', 'cancelled' }
end
if delay_ms > 0 then
  move(unit, run, step, 'running', 'pending', now)
  redis.call('HSET', key, 'reason', reason, 'not_before_ms', now + delay_ms)
  redis.call('SREM', 'fc:active:' .. run, unit)
  redis.call('ZREM', 'fc:deadlines', unit)
  redis.call('ZADD', 'fc:delayed', now + delay_ms, unit)
  event(run, now, 'trial', 'unit', unit, 'from', 'running', 'to', 'pending', 'reason', reason)
else
  back_to_pending(unit, run, step, index, 'running', reason, now)
end
return { 'OK', 'pending' }
