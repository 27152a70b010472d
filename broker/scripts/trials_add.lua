-- Adds the units of a step from `first` on as pending, and places what fits; units that exist are left alone.
-- groups: [[shape, n], …] in the order of the units; the shape "" is that of units in `failed` (index → cause), which end at once.
-- shapes: id → JSON of those that the run was not created with. GAP: units before `first` are missing (the server lost its last
-- second): go on from `expanded`.
-- uses: fc:freed fc:tick fc:run:* fc:step:* fc:unit:* fc:bucket:* fc:buckets fc:expanding fc:free fc:boot:* fc:alloc:* fc:used:* fc:shapes fc:active:* fc:deadlines fc:events:* fc:journals fcq.* fc:dependents:* fc:stepshapes:* fc:failed:* fc:rank:* fc:limits fc:offer:* fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:waiting fc:waiting:* fc:repairs fc:attention:*
-- args: run step first groups_json failed_json shapes_json expand_ms dispatch_ms limit
-- returns: OK expanded | NOT_FOUND | ENDED | GAP expanded | BAD_SHAPE | BAD_RANGE total
-- include: base tokens flow room gang queue host seat reserve repair place lose
local run, step, first = ARGV[1], ARGV[2], tonumber(ARGV[3])
local groups, failed, shapes = cjson.decode(ARGV[4]), cjson.decode(ARGV[5]), cjson.decode(ARGV[6])
local expand_ms, dispatch_ms, limit = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local key, known, now = 'fc:step:' .. run .. ':' .. step, 'fc:stepshapes:' .. run .. ':' .. step, now_ms()
local state = redis.call('HGET', key, 'state')
if not state then return { 'NOT_FOUND' } end
if ENDED[state] or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then return { 'ENDED' } end
local expanded, total = count(key, 'expanded'), count(key, 'total')
local n, is_sound = 0, first >= 0 and #groups > 0
for i = 1, #groups do
  n = n + groups[i][2]
  is_sound = is_sound and groups[i][2] > 0
end
if not is_sound or first + n > total then return { 'BAD_RANGE', tostring(total) } end
if first > expanded then return { 'GAP', tostring(expanded) } end
local checked, at = {}, first
for i = 1, #groups do
  local shape = groups[i][1]
  if shape ~= '' and not checked[shape] then
    if not shapes[shape] and redis.call('SISMEMBER', known, shape) == 0 then return { 'BAD_SHAPE' } end
    checked[shape] = true
  end
  for index = at, at + groups[i][2] - 1 do
    if (failed[tostring(index)] == nil) ~= (shape ~= '') then return { 'BAD_SHAPE' } end
  end
  at = at + groups[i][2]
end
for shape, text in pairs(shapes) do
  redis.call('HSETNX', 'fc:shapes', shape, text)
  redis.call('SADD', known, shape)
end
local added, ended = 0, {}
at = first
for i = 1, #groups do
  local shape = groups[i][1]
  for index = at, at + groups[i][2] - 1 do
    local unit = run .. ':' .. step .. ':' .. index
    if redis.call('EXISTS', 'fc:unit:' .. unit) == 0 then
      redis.call('HSET', 'fc:unit:' .. unit, 'state', 'pending', 'since_ms', now)
      added = added + 1
      if shape ~= '' then
        redis.call('HSET', 'fc:unit:' .. unit, 'shape', shape)
        redis.call('ZADD', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, index, unit)
        watch_pending(unit, run, step, now)
      else
        redis.call('HSET', 'fc:unit:' .. unit, 'cause', failed[tostring(index)])
        ended[#ended + 1] = unit
      end
    end
  end
  at = at + groups[i][2]
end
redis.call('HINCRBY', key, 'pending', added)
for i = 1, #ended do end_unit(ended[i], run, step, 'pending', 'failed', 'error', now) end
expanded = math.max(expanded, first + n)
redis.call('HSET', key, 'expanded', expanded)
if expanded >= total then
  redis.call('ZREM', 'fc:expanding', run .. ':' .. step)
else
  redis.call('ZADD', 'fc:expanding', now + expand_ms, run .. ':' .. step)
end
if state ~= 'waiting' then
  for shape in pairs(checked) do open_bucket(run, step, shape) end
  place(nil, limit, 0, dispatch_ms, now)
  check_step(run, step, now)
end
return { 'OK', tostring(expanded) }
