-- Steps and runs: opening what became ready, ending what has ended, skipping what can no longer run.
local PRIORITY, MAX_STEPS = 2 ^ 40, 100000

-- Buckets from which may be placed are listed twice: all of them, and under their shape, so that a call looks only at buckets of shapes
-- that fit somewhere.
local function list_bucket(run, step, shape, order)
  local name = run .. ':' .. step .. ':' .. shape
  redis.call('ZADD', 'fc:buckets', order, name)
  redis.call('ZADD', 'fc:waiting:' .. shape, order, name)
  redis.call('ZADD', 'fc:waiting', 'LT', order, shape)
end

local function unlist_bucket(name)
  local shape = string.match(name, '^[^:]+:[^:]+:(.+)$')
  redis.call('ZREM', 'fc:buckets', name)
  if redis.call('ZREM', 'fc:waiting:' .. shape, name) == 1 and redis.call('EXISTS', 'fc:waiting:' .. shape) == 0 then
    redis.call('ZREM', 'fc:waiting', shape)
  end
end

-- A step's place in the order of fc:buckets, by its run's priority and its own, then by submission.
local function order_step(run, step, number)
  local key = 'fc:step:' .. run .. ':' .. step
  local order = number - (count('fc:run:' .. run, 'priority') + count(key, 'priority')) * PRIORITY
  redis.call('HSET', key, 'order', string.format('%.0f', order))
  local shapes = redis.call('SMEMBERS', 'fc:stepshapes:' .. run .. ':' .. step)
  for i = 1, #shapes do
    if redis.call('ZSCORE', 'fc:buckets', run .. ':' .. step .. ':' .. shapes[i]) then
      list_bucket(run, step, shapes[i], string.format('%.0f', order))
    end
  end
end

local function open_bucket(run, step, shape)
  local key = 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape
  if redis.call('EXISTS', key) == 1 then
    local order = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'order')
    list_bucket(run, step, shape, order)
    look_again()
  end
end

local function close_buckets(run, step)
  local shapes = redis.call('SMEMBERS', 'fc:stepshapes:' .. run .. ':' .. step)
  for i = 1, #shapes do
    unlist_bucket(run .. ':' .. step .. ':' .. shapes[i])
    redis.call('UNLINK', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shapes[i])
  end
end

local function set_step(run, step, to, now, reason)
  local key = 'fc:step:' .. run .. ':' .. step
  local from = redis.call('HGET', key, 'state')
  if not may('step', from, to) then error('flowctl: no transition of step ' .. step .. ' from ' .. from .. ' to ' .. to) end
  redis.call('HSET', key, 'state', to)
  if reason then redis.call('HSET', key, 'reason', reason) end
  if to == 'ready' then redis.call('HSETNX', key, 'ready_ms', now) end
  if to == 'running' then redis.call('HSETNX', key, 'started_ms', now) end
  if ENDED[to] then
    redis.call('HSET', key, 'ended_ms', now)
    redis.call('HDEL', 'fc:limits', run .. ':' .. step)
  end
  event(run, now, 'step', 'step', step, 'from', from, 'to', to, 'reason', reason or '')
end

local function set_run(run, to, now, reason)
  local key = 'fc:run:' .. run
  local from = redis.call('HGET', key, 'state')
  if not may('run', from, to) then error('flowctl: no transition of run ' .. run .. ' from ' .. from .. ' to ' .. to) end
  redis.call('HSET', key, 'state', to)
  if reason and reason ~= '' then redis.call('HSET', key, 'reason', reason) end
  if to == 'running' then redis.call('HSETNX', key, 'started_ms', now) end
  if ENDED[to] then
    redis.call('HSET', key, 'ended_ms', now)
    redis.call('HDEL', 'fc:limits', run)
    redis.call('HDEL', 'fc:weights', run)
  end
  event(run, now, 'run', 'from', from, 'to', to, 'reason', reason or '')
end

local function make_ready(run, step, now)
  set_step(run, step, 'ready', now)
  local shapes = redis.call('SMEMBERS', 'fc:stepshapes:' .. run .. ':' .. step)
  for i = 1, #shapes do open_bucket(run, step, shapes[i]) end
end

-- Pending units of a step that ends early end with it: their bucket goes, the counter moves, no write per unit.
local function drop_pending(run, step)
  local key = 'fc:step:' .. run .. ':' .. step
  close_buckets(run, step)
  local total, pending = count(key, 'total'), count(key, 'pending')
  local unmade = total - count(key, 'expanded')
  redis.call('HINCRBY', key, 'cancelled', pending + unmade)
  redis.call('HSET', key, 'pending', 0, 'expanded', total)
  redis.call('ZREM', 'fc:expanding', run .. ':' .. step)
end

-- Ends a step all of whose units have ended; returns whether it did.
local function end_step(run, step, now)
  local key = 'fc:step:' .. run .. ':' .. step
  local record = redis.call('HMGET', key, 'state', 'total', 'expanded', 'completed', 'failed', 'cancelled', 'kind')
  if ENDED[record[1]] or record[1] == 'waiting' then return false end
  local total, completed, failed, cancelled = tonumber(record[2]), tonumber(record[4]), tonumber(record[5]), tonumber(record[6])
  if tonumber(record[3]) < total or completed + failed + cancelled < total then return false end
  if record[1] == 'ready' and completed > 0 then set_step(run, step, 'running', now) end
  if cancelled > 0 and redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then
    set_step(run, step, 'cancelled', now, 'cancelled')
  elseif completed > 0 then
    set_step(run, step, 'completed', now)
  elseif failed > 0 then
    set_step(run, step, 'failed', now, record[7] == 'stage' and 'failed' or 'no trial completed')
  else
    set_step(run, step, 'cancelled', now, 'cancelled')
  end
  return true
end

-- Works off a queue of steps that have just ended (depth of the graph, not of the stack).
local function after_end(run, ended, now)
  local queue = { ended }
  while #queue > 0 do
    local step = table.remove(queue)
    local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
    redis.call('HINCRBY', 'fc:run:' .. run, 'steps_left', -1)
    if state == 'failed' or state == 'skipped' then redis.call('HINCRBY', 'fc:run:' .. run, 'failed_steps', 1) end
    if state == 'cancelled' then redis.call('HINCRBY', 'fc:run:' .. run, 'cancelled_steps', 1) end
    local dependents = redis.call('SMEMBERS', 'fc:dependents:' .. run .. ':' .. step)
    table.sort(dependents)
    for i = 1, #dependents do
      local other = 'fc:step:' .. run .. ':' .. dependents[i]
      if redis.call('HGET', other, 'state') == 'waiting' then
        if state == 'completed' then
          if redis.call('HINCRBY', other, 'deps_left', -1) == 0 then
            make_ready(run, dependents[i], now)
            -- its units may all have been cancelled while it waited
            if end_step(run, dependents[i], now) then queue[#queue + 1] = dependents[i] end
          end
        else
          drop_pending(run, dependents[i])
          set_step(run, dependents[i], state == 'cancelled' and 'cancelled' or 'skipped', now, step .. ' ' .. state)
          queue[#queue + 1] = dependents[i]
        end
      end
    end
  end
  local record = redis.call('HMGET', 'fc:run:' .. run, 'steps_left', 'failed_steps', 'cancelled_steps', 'wanted', 'state', 'reason')
  if tonumber(record[1]) > 0 or ENDED[record[5]] then return end
  local failed, cancelled = tonumber(record[2]), tonumber(record[3])
  if cancelled > 0 and (failed == 0 or record[4] == 'cancel') then
    set_run(run, 'cancelled', now, record[4] == 'cancel' and record[6] or 'cancelled')
    return
  end
  if record[5] == 'submitted' then set_run(run, 'running', now) end
  set_run(run, failed > 0 and 'failed' or 'completed', now)
end

-- Called after a unit of the step ended or the step was fully expanded.
local function check_step(run, step, now)
  if end_step(run, step, now) then after_end(run, step, now) end
end
