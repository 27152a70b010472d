-- Cancels one unit: at once while it waits or is placed, through its guardian while it runs.
-- uses: fc:freed fc:tick fc:unit:* fc:run:* fc:step:* fc:boot:* fc:bucket:* fc:buckets fc:delayed fc:attention:* fc:active:* fc:deadlines fc:alloc:* fc:used:* fc:offer:* fc:free fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* fc:shapes fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:hosts:* fc:waiting fc:waiting:* fc:repairs
-- args: unit dispatch_ms
-- returns: OK state | ENDED state | NOT_FOUND
-- include: base tokens flow room gang queue host seat reserve repair place lose
local unit, dispatch_ms = ARGV[1], tonumber(ARGV[2])
local key, now = 'fc:unit:' .. unit, now_ms()
local record = as_map(redis.call('HGETALL', key))
if not record.state then return { 'NOT_FOUND' } end
local run, step = split_unit(unit)
if ENDED[record.state] then return { 'ENDED', record.state } end
-- Pending units of a cancelled run or an ended step were cancelled with it, by counter and without a write of their own.
local is_dropped = ENDED[redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')] or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel'
if record.state == 'pending' and is_dropped then return { 'ENDED', 'cancelled' } end
if record.wanted ~= 'cancel' then
  redis.call('HSET', key, 'wanted', 'cancel')
  event(run, now, 'wanted', 'unit', unit, 'wanted', 'cancel')
end
if record.state == 'pending' then
  take_out(unit, run, step, record.shape)
  redis.call('ZREM', 'fc:delayed', unit)
  end_unit(unit, run, step, 'pending', 'cancelled', 'cancelled', now)
  check_step(run, step, now)
  return { 'OK', 'cancelled' }
end
if record.state == 'placed' then
  record.wanted = 'cancel'
  undo_placement(unit, record, 'cancelled', now)
  place(record.boot, 16, 0, dispatch_ms, now)
  return { 'OK', 'cancelled' }
end
redis.call('SADD', 'fc:attention:' .. record.boot, unit)
return { 'OK', 'running' }
