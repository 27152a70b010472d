-- Creates a run with its steps, none of them expanded; a repeat with the same token changes nothing.
-- uses: fc:run:* fc:runs fc:seq fc:steps:* fc:step:* fc:dependents:* fc:shapes fc:stepshapes:* fc:name:* fc:expanding fc:events:* fc:journals fc:buckets fc:limits fc:weights fc:waiting fc:waiting:*
-- args: run token fields_json steps_json expand_ms
-- returns: OK | EXISTS state
-- include: base flow
local function text_of(value)
  return type(value) == 'string' and value or ''
end

local function number_of(value)
  return type(value) == 'number' and value or ''
end

local run, token, fields, steps, expand_ms = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), cjson.decode(ARGV[4]), tonumber(ARGV[5])
local key, now = 'fc:run:' .. run, now_ms()
local known = redis.call('HMGET', key, 'token', 'state')
if known[2] then
  if known[1] == token then return { 'OK' } end
  return { 'EXISTS', known[2] }
end
local seq = redis.call('INCR', 'fc:seq')
redis.call('HSET', key, 'token', token, 'state', 'submitted', 'wanted', 'run', 'created_ms', now, 'seq', seq, 'steps_left', #steps, 'failed_steps', 0, 'cancelled_steps', 0,
  'priority', 0, 'weight', 1)
for name, value in pairs(fields) do redis.call('HSET', key, name, value) end
if tonumber(fields.weight) and tonumber(fields.weight) ~= 1 then redis.call('HSET', 'fc:weights', run, fields.weight) end
redis.call('ZADD', 'fc:runs', now, run)
redis.call('DEL', 'fc:name:' .. run)
event(run, now, 'run', 'from', '', 'to', 'submitted', 'reason', '')
for i = 1, #steps do
  local step = steps[i]
  local step_key = 'fc:step:' .. run .. ':' .. step.name
  redis.call('RPUSH', 'fc:steps:' .. run, step.name)
  redis.call('HSET', step_key, 'kind', step.kind, 'state', 'waiting', 'total', step.total, 'expanded', 0, 'deps_left', #step.after,
    'after', #step.after == 0 and '[]' or cjson.encode(step.after), 'metric', text_of(step.metric), 'mode', text_of(step.mode), 'max_failures', step.max_failures,
    'max_worker_losses', step.max_worker_losses, 'pending', 0, 'placed', 0, 'running', 0, 'completed', 0, 'failed', 0,
    'cancelled', 0, 'max_concurrent', number_of(step.max_concurrent), 'priority', tonumber(step.priority) or 0,
    'pending_timeout_ms', number_of(step.pending_timeout_ms), 'on_bundle_loss', text_of(step.on_bundle_loss))
  order_step(run, step.name, seq * MAX_STEPS + i)
  if tonumber(step.max_concurrent) then redis.call('HSET', 'fc:limits', run .. ':' .. step.name, step.max_concurrent) end
  if text_of(step.shape) ~= '' then -- else each unit brings its own
    redis.call('HSETNX', 'fc:shapes', step.shape, step.shape_json)
    redis.call('SADD', 'fc:stepshapes:' .. run .. ':' .. step.name, step.shape)
  end
  for j = 1, #step.after do redis.call('SADD', 'fc:dependents:' .. run .. ':' .. step.after[j], step.name) end
  redis.call('ZADD', 'fc:expanding', now + expand_ms, run .. ':' .. step.name)
  if #step.after == 0 then set_step(run, step.name, 'ready', now) end
end
return { 'OK' }
