-- What every script shares: the clock, replies, events, and the one transition table (inserted from dsl/states.py).
local TRANSITIONS

-- A boot is silent after, a gap between two ticks means an outage, a full pass is due.
local SILENT_MS, GAP_MS, PASS_MS = 5000, 2500, 1000

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function count(key, field)
  return tonumber(redis.call('HGET', key, field)) or 0
end

local function as_map(flat)
  local map = {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

local function split_unit(unit)
  local run, step, index = string.match(unit, '^([^:]+):([^:]+):(%d+)$')
  return run, step, tonumber(index)
end

-- What could not be placed may be now, on boots whose tokens did not change too: the next full pass looks at all of them.
local function look_again()
  redis.call('HSET', 'fc:tick', 'changed', '1')
end

local function event(run, now, kind, ...)
  redis.call('XADD', 'fc:events:' .. run, '*', 'at', now, 'kind', kind, ...)
  redis.call('SADD', 'fc:journals', run)
end

local function may(entity, from, to)
  TRANSITIONS = TRANSITIONS or cjson.decode('@@TRANSITIONS@@')
  local sources = TRANSITIONS[entity][to]
  if not sources then return false end
  for i = 1, #sources do
    if sources[i] == from then return true end
  end
  return false
end

-- Every change of a unit's state passes here: the table is asked, the step's counters follow.
local function move(unit, run, step, from, to, now)
  if not may('trial', from, to) then
    error('flowctl: no transition of ' .. unit .. ' from ' .. from .. ' to ' .. to)
  end
  redis.call('HSET', 'fc:unit:' .. unit, 'state', to, 'since_ms', now)
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. step, from, -1)
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. step, to, 1)
end

local ENDED = { completed = true, failed = true, cancelled = true, skipped = true }
