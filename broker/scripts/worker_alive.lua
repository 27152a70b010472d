-- The sign of life of a worker for which nothing has changed: the same answer as worker_beat gives, for little. MORE: ask that.
-- uses: fc:boot:* fc:boots fc:store fc:beats fc:alloc:* fc:attention:*
-- args: boot accepting
-- returns: OK json | MORE | UNKNOWN
-- include: base
local boot, accepting = ARGV[1], ARGV[2]
local key, now = 'fc:boot:' .. boot, now_ms()
local record = redis.call('HMGET', key, 'state', 'accepting', 'suspect')
if not record[1] or record[1] == 'gone' then return { 'UNKNOWN' } end
if record[2] ~= accepting or record[3] == '1' then return { 'MORE' } end
local rows = redis.call('HVALS', 'fc:alloc:' .. boot)
for i = 1, #rows do
  local row = cjson.decode(rows[i])
  if row.s ~= 'held' or row.x then return { 'MORE' } end
end
redis.call('HSET', key, 'last_ms', now)
redis.call('ZADD', 'fc:boots', now, boot)
local reply = { now_ms = now, store = redis.call('GET', 'fc:store'), beats = redis.call('INCR', 'fc:beats'), state = record[1] }
local attention = redis.call('SMEMBERS', 'fc:attention:' .. boot)
if #attention > 0 then
  redis.call('DEL', 'fc:attention:' .. boot)
  reply.attention = attention
end
return { 'OK', cjson.encode(reply) }
