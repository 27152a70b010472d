-- Changes what a run or one of its steps may use while it runs: max_concurrent_trials ('' for no limit), priority, weight.
-- uses: fc:run:* fc:limits fc:weights fc:active:* fc:alloc:* fc:boot:* fc:bucket:* fc:buckets fc:deadlines fc:events:* fc:free fc:freed fc:journals fc:offer:* fc:pools fc:poolused fc:reserve fc:shapes fc:shares fc:step:* fc:steps:* fc:stepshapes:* fc:tick fc:total fc:unit:* fc:used:* fcq.* fc:waiting fc:waiting:* fc:repairs fc:attention:*
-- args: run step name value dispatch_ms
-- returns: OK | NOT_FOUND | ENDED state | BAD_NAME
-- include: base tokens flow room gang queue host seat reserve repair place
local run, step, name, value, dispatch_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local now = now_ms()
local state = redis.call('HGET', 'fc:run:' .. run, 'state')
if not state then return { 'NOT_FOUND' } end
if ENDED[state] then return { 'ENDED', state } end
local steps = step ~= '' and { step } or redis.call('LRANGE', 'fc:steps:' .. run, 0, -1)
for i = 1, #steps do
  state = redis.call('HGET', 'fc:step:' .. run .. ':' .. steps[i], 'state')
  if not state then return { 'NOT_FOUND' } end
  if step ~= '' and ENDED[state] then return { 'ENDED', state } end
end
if name == 'max_concurrent_trials' then
  local field = step ~= '' and run .. ':' .. step or run
  if value == '' then redis.call('HDEL', 'fc:limits', field) else redis.call('HSET', 'fc:limits', field, value) end
  if step ~= '' then redis.call('HSET', 'fc:step:' .. run .. ':' .. step, 'max_concurrent', value) end
elseif name == 'weight' and step == '' then
  redis.call('HSET', 'fc:weights', run, value)
  redis.call('HSET', 'fc:run:' .. run, 'weight', value)
elseif name == 'priority' then
  redis.call('HSET', step ~= '' and 'fc:step:' .. run .. ':' .. step or 'fc:run:' .. run, 'priority', value)
  for i = 1, #steps do order_step(run, steps[i], tonumber(redis.call('HGET', 'fc:step:' .. run .. ':' .. steps[i], 'order')) % PRIORITY) end
else
  return { 'BAD_NAME' }
end
event(run, now, 'set', 'step', step, 'name', name, 'value', value)
look_again()
place(nil, 50, 0, dispatch_ms, now)
return { 'OK' }
