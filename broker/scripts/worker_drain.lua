-- Takes a boot out of service: nothing more is placed there; what is placed and not claimed goes back.
-- uses: fc:boot:* fc:alloc:* fc:used:* fc:offer:* fc:free fc:unit:* fc:run:* fc:step:* fc:active:* fc:deadlines fc:bucket:* fc:buckets fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* fc:delayed fc:shapes
-- args: boot reason dispatch_ms
-- returns: OK | UNKNOWN
-- include: base tokens flow place lose
local boot, reason, dispatch_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local key, now = 'fc:boot:' .. boot, now_ms()
local state = redis.call('HGET', key, 'state')
if not state or state == 'gone' then return { 'UNKNOWN' } end
redis.call('HSET', key, 'state', 'draining', 'accepting', '0')
local rows = redis.call('HKEYS', 'fc:alloc:' .. boot)
table.sort(rows)
for i = 1, #rows do
  local unit, epoch = string.match(rows[i], '^(.*)@(%d+)$')
  local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
  if record.boot == boot and record.epoch == epoch and record.state == 'placed' then undo_placement(unit, record, reason, now) end
end
store_free(boot)
place(nil, 16, 0, dispatch_ms, now)
return { 'OK' }
