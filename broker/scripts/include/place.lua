-- Placement: pending units sit in buckets of (run, step, shape); a call costs buckets × boots + placed, never pending.
local MAX_BUCKETS = 256

local function put_back(unit, run, step, index)
  local shape = redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  redis.call('ZADD', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, index, unit)
  local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
  if state == 'ready' or state == 'running' then open_bucket(run, step, shape) end
end

local function fits(need, free)
  for dim, n in pairs(need) do
    if n > (free[dim] or 0) then return false end
  end
  return true
end

local function serves(boot, shape, run)
  if boot.p ~= shape.python or (boot.o ~= '' and boot.o ~= run) then return false end
  for i = 1, #boot.k do
    if boot.k[i] == shape.key then return true end
  end
  return false
end

-- The boot's message template is read once per call. Returns false for a boot whose record is gone: nothing can be sent there.
local function can_send(boot)
  if boot.template == nil then
    local record = redis.call('HMGET', 'fc:boot:' .. boot.id, 'template', 'queue')
    boot.template, boot.queue = record[1] or false, record[2] or false
  end
  return boot.template and boot.queue
end

local function put(unit, boot, shape, dispatch_ms, now)
  local run, step = split_unit(unit)
  local key = 'fc:unit:' .. unit
  local epoch = redis.call('HINCRBY', key, 'epoch', 1)
  move(unit, run, step, 'pending', 'placed', now)
  redis.call('HSET', key, 'boot', boot.id)
  redis.call('HDEL', key, 'nonce', 'reason')
  redis.call('SADD', 'fc:active:' .. run, unit)
  redis.call('ZADD', 'fc:deadlines', now + dispatch_ms, unit)
  book(boot.id, unit, epoch, shape.need, 'held', now)
  for dim, n in pairs(shape.need) do boot.f[dim] = (boot.f[dim] or 0) - n end
  boot.changed = true
  redis.call('LPUSH', boot.queue, message_text(boot.template, unit, epoch))
  event(run, now, 'trial', 'unit', unit, 'from', 'pending', 'to', 'placed', 'epoch', epoch, 'boot', boot.id)
end

-- Places at most `limit` units, on `only` alone or on every boot, looking at buckets from `cursor` on.
-- Returns how many were placed and where the next full pass goes on (0: from the start).
local function place(only, limit, cursor, dispatch_ms, now)
  local boots = {}
  if only then
    local text = redis.call('HGET', 'fc:free', only)
    if text then boots[1] = cjson.decode(text); boots[1].id = only end
  else
    local flat = redis.call('HGETALL', 'fc:free')
    for i = 1, #flat, 2 do
      local boot = cjson.decode(flat[i + 1])
      if boot.a == 1 then boot.id = flat[i]; boots[#boots + 1] = boot end
    end
  end
  if #boots == 0 or (only and boots[1].a ~= 1) then return 0, 0 end
  local names = redis.call('ZRANGE', 'fc:buckets', cursor, cursor + MAX_BUCKETS - 1)
  if #names == 0 then return 0, 0 end
  local largest = {}
  for i = 1, #boots do
    for dim, n in pairs(boots[i].f) do
      if n > (largest[dim] or 0) then largest[dim] = n end
    end
  end
  local shapes, placed, looked = {}, 0, 0
  for i = 1, #names do
    local run, _, id = string.match(names[i], '^([^:]+):([^:]+):([^:]+)$')
    if not shapes[id] then shapes[id] = cjson.decode(redis.call('HGET', 'fc:shapes', id) or '{"need":{"?":1}}') end
    local shape = shapes[id]
    if fits(shape.need, largest) then
      local bucket = 'fc:bucket:' .. names[i]
      local candidates = {}
      for j = 1, #boots do
        if fits(shape.need, boots[j].f) and serves(boots[j], shape, run) and can_send(boots[j]) then candidates[#candidates + 1] = boots[j] end
      end
      while #candidates > 0 and looked < limit do
        local best = 1
        for j = 2, #candidates do
          if (candidates[j].f.slot or 0) > (candidates[best].f.slot or 0) then best = j end
        end
        local first = redis.call('ZRANGE', bucket, 0, 0)[1]
        if not first then break end
        redis.call('ZREM', bucket, first)
        looked = looked + 1
        if redis.call('HGET', 'fc:unit:' .. first, 'state') == 'pending' then
          put(first, candidates[best], shape, dispatch_ms, now)
          placed = placed + 1
        end
        if not fits(shape.need, candidates[best].f) then table.remove(candidates, best) end
      end
      if redis.call('EXISTS', bucket) == 0 then redis.call('ZREM', 'fc:buckets', names[i]) end
      if looked >= limit then break end
    end
  end
  for j = 1, #boots do
    if boots[j].changed then
      redis.call('HSET', 'fc:free', boots[j].id, cjson.encode({
        a = boots[j].a, p = boots[j].p, k = boots[j].k, o = boots[j].o, f = boots[j].f,
      }))
    end
  end
  if looked >= limit or #names < MAX_BUCKETS then return placed, 0 end
  return placed, cursor + MAX_BUCKETS
end
