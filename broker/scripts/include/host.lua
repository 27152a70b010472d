-- Hosts: code that an attempt runs on its further bundles. A host holds no tokens of its own: its bundle's row says that it hosts (h: the
-- host's number), and the row outlives the attempt until the host's tree is gone. One entry per bundle in fc:hosts:<unit>.
local function host_name(unit, epoch, bundle, number)
  return row_name(unit, epoch, bundle) .. '.' .. number
end

local function split_host(name)
  local unit, epoch, bundle, number = string.match(name, '^(.*)@(%d+)#(%d+)%.(%d+)$')
  return unit, epoch, tonumber(bundle), tonumber(number)
end

local function read_host(unit, epoch, bundle, number)
  local text = redis.call('HGET', 'fc:hosts:' .. unit, bundle)
  local host = text and cjson.decode(text)
  if host and tostring(host.epoch) == tostring(epoch) and host.n == tonumber(number) then return host end
  return nil
end

local function write_host(unit, bundle, host)
  redis.call('HSET', 'fc:hosts:' .. unit, bundle, cjson.encode(host))
end

-- Whether the attempt that asked for a host still speaks for its unit.
local function is_attempt(unit, epoch, nonce)
  local record = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'epoch', 'nonce')
  return record[1] == 'running' and record[2] == tostring(epoch) and record[3] == nonce
end

-- A host is over: its bundle is free for the next one, or its tokens return if its attempt is over too. Its attempt's guardian is told.
-- Not certain: something of it may still run, and its boot will say when that is over (x).
local function end_host(unit, epoch, bundle, host, state, fields, certain, now)
  local name = row_name(unit, epoch, bundle)
  redis.call('ZREM', 'fc:deadlines', host_name(unit, epoch, bundle, host.n))
  forget_message(unit, epoch .. '#' .. bundle .. '.' .. host.n)
  local text = redis.call('HGET', 'fc:alloc:' .. host.boot, name)
  local row = text and cjson.decode(text)
  if row and not certain then
    row.x = 1
    redis.call('HSET', 'fc:alloc:' .. host.boot, name, cjson.encode(row))
  elseif row and row.s ~= 'held' then
    unbook(host.boot, name)
    store_free(host.boot)
  elseif row and row.h == host.n then
    row.h = nil
    redis.call('HSET', 'fc:alloc:' .. host.boot, name, cjson.encode(row))
  end
  if is_attempt(unit, epoch, host.by) then
    host.state, host.ended_ms = state, now
    for key, value in pairs(fields) do host[key] = value end
    write_host(unit, bundle, host)
    redis.call('SADD', 'fc:attention:' .. redis.call('HGET', 'fc:unit:' .. unit, 'boot'), unit)
  end
end

-- A host whose deadline has passed: not taken in time, or its guardian is silent. Returns the boot of a silent one.
local function lose_host(name, now)
  local unit, epoch, bundle, number = split_host(name)
  local host = read_host(unit, epoch, bundle, number)
  redis.call('ZREM', 'fc:deadlines', name)
  if not host then return nil end
  if host.state == 'placed' then
    withdraw(host.boot, unit, epoch .. '#' .. bundle .. '.' .. number)
    end_host(unit, epoch, bundle, host, 'lost', { text = 'its worker did not take it in time' }, true, now)
  elseif host.state == 'running' then
    end_host(unit, epoch, bundle, host, 'lost', { text = 'lost contact with its worker' }, false, now)
    return host.boot
  end
  return nil
end
