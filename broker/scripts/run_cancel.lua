-- Cancels a run: what waits ends now, what is placed ends at its claim, what runs is told through its guardian. Idempotent.
-- uses: fc:tick fc:run:* fc:steps:* fc:step:* fc:stepshapes:* fc:bucket:* fc:buckets fc:boots fc:attention:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:active:* fc:limits fc:weights fc:waiting fc:waiting:*
-- args: run reason
-- returns: OK state | ENDED state | NOT_FOUND
-- include: base flow
local run, reason = ARGV[1], ARGV[2]
local key, now = 'fc:run:' .. run, now_ms()
local state = redis.call('HGET', key, 'state')
if not state then return { 'NOT_FOUND' } end
if ENDED[state] then return { 'ENDED', state } end
if redis.call('HGET', key, 'wanted') ~= 'cancel' then
  redis.call('HSET', key, 'wanted', 'cancel')
  if reason ~= '' then redis.call('HSET', key, 'reason', reason) end
  event(run, now, 'wanted', 'wanted', 'cancel', 'reason', reason)
end
if redis.call('EXISTS', 'fc:active:' .. run) == 1 then
  local boots = redis.call('ZRANGE', 'fc:boots', 0, -1)
  for i = 1, #boots do redis.call('SADD', 'fc:attention:' .. boots[i], run) end
end
local steps = redis.call('LRANGE', 'fc:steps:' .. run, 0, -1)
for i = 1, #steps do
  local step_state = redis.call('HGET', 'fc:step:' .. run .. ':' .. steps[i], 'state')
  if step_state == 'waiting' then
    drop_pending(run, steps[i])
    set_step(run, steps[i], 'cancelled', now, 'cancelled')
    after_end(run, steps[i], now)
  elseif not ENDED[step_state] then
    drop_pending(run, steps[i])
    check_step(run, steps[i], now)
  end
end
return { 'OK', redis.call('HGET', key, 'state') }
