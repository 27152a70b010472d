-- The worker's sign of life: whether it accepts, and which attempts physically run there. Orphans that do not are freed.
-- uses: fc:freed fc:tick fc:boot:* fc:boots fc:store fc:beats fc:alloc:* fc:used:* fc:offer:* fc:free fc:attention:* fc:unit:* fc:step:* fc:buckets fc:bucket:* fc:shapes fc:active:* fc:deadlines fc:events:* fc:journals fcq.* fc:unacked fc:unacked_index fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:total fc:weights fc:waiting fc:waiting:* fc:repairs
-- args: boot accepting running_json dispatch_ms limit
-- returns: OK json | UNKNOWN
-- include: base tokens flow room gang queue host seat reserve repair place
local boot, accepting, running, dispatch_ms, limit = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local key, now = 'fc:boot:' .. boot, now_ms()
local record = redis.call('HMGET', key, 'state', 'accepting', 'suspect')
if not record[1] or record[1] == 'gone' then return { 'UNKNOWN' } end
redis.call('HSET', key, 'last_ms', now)
redis.call('ZADD', 'fc:boots', now, boot)
local alive = {}
for i = 1, #running do alive[running[i]] = true end
local changed, freed = record[2] ~= accepting or record[3] == '1', 0
local rows = redis.call('HGETALL', 'fc:alloc:' .. boot)
for i = 1, #rows, 2 do
  local row = not alive[rows[i]] and cjson.decode(rows[i + 1]) or {}
  if row.s == 'held' and row.x then
    row.h, row.x = nil, nil
    redis.call('HSET', 'fc:alloc:' .. boot, rows[i], cjson.encode(row))
  elseif row.s == 'orphan' and now >= (row.after or 0) then
    unbook(boot, rows[i])
    freed = freed + 1
  end
end
if changed then redis.call('HSET', key, 'accepting', accepting, 'suspect', '0') end
if changed and accepting ~= '1' then look_again() end -- who avoids other workers may have none left but them
if changed or freed > 0 then
  store_free(boot)
  place(boot, limit, 0, dispatch_ms, now)
end
local attention = redis.call('SMEMBERS', 'fc:attention:' .. boot)
if #attention > 0 then redis.call('DEL', 'fc:attention:' .. boot) end
local reply = { now_ms = now, store = redis.call('GET', 'fc:store'), beats = redis.call('INCR', 'fc:beats'), state = record[1] }
if #attention > 0 then reply.attention = attention end
return { 'OK', cjson.encode(reply) }
