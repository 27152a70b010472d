-- Adds the units first … first+n-1 of a step as pending, and places what fits; units that exist are left alone.
-- GAP: units before `first` are missing (the server lost its last second): go on from `expanded`.
-- uses: fc:freed fc:tick fc:run:* fc:step:* fc:unit:* fc:bucket:* fc:buckets fc:expanding fc:free fc:boot:* fc:alloc:* fc:used:* fc:shapes fc:active:* fc:deadlines fc:events:* fc:journals fcq.* fc:dependents:* fc:stepshapes:*
-- args: run step first n shape expand_ms dispatch_ms limit
-- returns: OK expanded | NOT_FOUND | ENDED | GAP expanded | BAD_SHAPE | BAD_RANGE total
-- include: base tokens flow place
local run, step, first, n, shape = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local expand_ms, dispatch_ms, limit = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local key, now = 'fc:step:' .. run .. ':' .. step, now_ms()
local state = redis.call('HGET', key, 'state')
if not state then return { 'NOT_FOUND' } end
if ENDED[state] or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then return { 'ENDED' } end
if redis.call('SISMEMBER', 'fc:stepshapes:' .. run .. ':' .. step, shape) == 0 then return { 'BAD_SHAPE' } end
local expanded, total = count(key, 'expanded'), count(key, 'total')
if first < 0 or n < 1 or first + n > total then return { 'BAD_RANGE', tostring(total) } end
if first > expanded then return { 'GAP', tostring(expanded) } end
local bucket, added = 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, 0
for index = first, first + n - 1 do
  local unit = run .. ':' .. step .. ':' .. index
  if redis.call('EXISTS', 'fc:unit:' .. unit) == 0 then
    redis.call('HSET', 'fc:unit:' .. unit, 'state', 'pending', 'shape', shape, 'since_ms', now)
    redis.call('ZADD', bucket, index, unit)
    added = added + 1
  end
end
redis.call('HINCRBY', key, 'pending', added)
expanded = math.max(expanded, first + n)
redis.call('HSET', key, 'expanded', expanded)
if expanded >= total then
  redis.call('ZREM', 'fc:expanding', run .. ':' .. step)
else
  redis.call('ZADD', 'fc:expanding', now + expand_ms, run .. ':' .. step)
end
if state ~= 'waiting' then
  open_bucket(run, step, shape)
  place(nil, limit, 0, dispatch_ms, now)
  check_step(run, step, now)
end
return { 'OK', tostring(expanded) }
