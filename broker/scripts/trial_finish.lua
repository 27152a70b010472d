-- Publishes the outcome of an attempt: state, tokens back, next steps, next placement. The same nonce may say it again.
-- uses: fc:freed fc:tick fc:unit:* fc:run:* fc:step:* fc:boot:* fc:attempts:* fc:active:* fc:deadlines fc:delayed fc:failed:* fc:rank:* fc:alloc:* fc:used:* fc:offer:* fc:free fc:bucket:* fc:buckets fc:shapes fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fcq.* fc:leftovers fc:tail:* fc:unacked fc:unacked_index fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:attention:* fc:hosts:* fc:waiting fc:waiting:* fc:repairs fc:boots
-- args: unit epoch nonce to reason cause_json outcome fails_up delay_ms last_json dispatch_ms
-- returns: OK state | LOST state | BAD_STATE to
-- include: base tokens flow room gang queue host seat reserve repair place lose judge
local unit, epoch, nonce, to, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local cause_json, outcome, fails_up, delay_ms, last = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local dispatch_ms = tonumber(ARGV[11])
local key, now = 'fc:unit:' .. unit, now_ms()
local record = as_map(redis.call('HGETALL', key))
if record.finished == epoch .. '/' .. nonce then return { 'OK', record.state } end
if record.state ~= 'running' or record.epoch ~= epoch or record.nonce ~= nonce then return { 'LOST', record.state or '' } end
if to == 'paused' or not may('trial', 'running', to) then return { 'BAD_STATE', to } end
local cause = cause_json ~= '' and cjson.decode(cause_json) or nil
local run, step, index = split_unit(unit)
redis.call('HSET', key, 'finished', epoch .. '/' .. nonce)
give_back(unit, record, true)
record_attempt(unit, {
  attempt = tonumber(record.attempts), epoch = tonumber(epoch), nonce = nonce, boot = record.boot, worker = record.worker,
  started_ms = tonumber(record.started_ms), ended_ms = now, outcome = outcome, cause = cause,
})
if fails_up > 0 then redis.call('HINCRBY', key, 'fails', fails_up) end
if last ~= '' then redis.call('HSET', key, 'last', last) end
if cause_json ~= '' then redis.call('HSET', key, 'cause', cause_json) else redis.call('HDEL', key, 'cause') end
leave_rows(unit)
judge(unit, record, fails_up > 0, cause, now)
if to == 'pending' and is_cancelled(run, record) then to, reason = 'cancelled', 'cancelled' end
if to == 'pending' then
  back_to_pending(unit, run, step, index, 'running', reason, now, delay_ms, cause_json)
else
  end_unit(unit, run, step, 'running', to, reason, now)
  check_step(run, step, now)
end
place_after(record.boot, run, step, 16, dispatch_ms, now)
return { 'OK', to }
