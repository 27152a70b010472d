-- Placement: pending units sit in buckets of (run, step, shape); a call costs buckets × distinct boots + placed, never pending.
local MAX_BUCKETS = 256

local function put_back(unit, run, step, index)
  local shape = redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  redis.call('ZADD', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, index, unit)
  local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
  if state == 'ready' or state == 'running' then open_bucket(run, step, shape) end
end

-- `wants` is a shape's need as pairs in an array, the scarcest first: most boots are told from the first pair.
local function fits(wants, free)
  for i = 1, #wants do
    if wants[i][2] > (free[wants[i][1]] or 0) then return false end
  end
  return true
end

local function wants_of(shape, largest)
  local wants = {}
  for dim, n in pairs(shape.need) do wants[#wants + 1] = { dim, n, n / (largest[dim] or 0.001) } end
  table.sort(wants, function(a, b) return a[3] > b[3] or (a[3] == b[3] and a[1] < b[1]) end)
  return wants
end

-- Something was freed, offered or opened since the last full pass that left nothing undone.
local function is_changed()
  return redis.call('HGET', 'fc:tick', 'changed') ~= '0'
end

local function serves(group, shape, run)
  if group.p ~= shape.python or (group.o ~= '' and group.o ~= run) then return false end
  for i = 1, #group.k do
    if group.k[i] == shape.key then return true end
  end
  return false
end

-- Boots with equal rows in fc:free are one group: whether a shape fits is asked once for all of them.
local function free_groups(flat)
  local groups, by_text = {}, {}
  for i = 1, #flat, 2 do
    local text = flat[i + 1]
    local group = by_text[text]
    if not group then
      group = cjson.decode(text)
      group.boots = {}
      by_text[text] = group
      if group.a == 1 then groups[#groups + 1] = group end
    end
    group.boots[#group.boots + 1] = flat[i]
  end
  return groups
end

local function put(unit, boot, record, shape, dispatch_ms, now)
  local run, step = split_unit(unit)
  local key = 'fc:unit:' .. unit
  local epoch = redis.call('HINCRBY', key, 'epoch', 1)
  move(unit, run, step, 'pending', 'placed', now)
  redis.call('HSET', key, 'boot', boot)
  redis.call('HDEL', key, 'nonce', 'reason')
  redis.call('SADD', 'fc:active:' .. run, unit)
  redis.call('ZADD', 'fc:deadlines', now + dispatch_ms, unit)
  book(boot, unit, epoch, shape.need, 'held', now)
  redis.call('LPUSH', record[2], message_text(record[1], unit, epoch))
  event(run, now, 'trial', 'unit', unit, 'from', 'pending', 'to', 'placed', 'epoch', epoch, 'boot', boot)
end

-- Places units of one bucket on the groups that can hold its shape, the boot with most free slots first; what a boot has left makes it
-- a group of its own. Returns how many were looked at and how many placed.
local function place_bucket(name, shape, groups, changed, limit, dispatch_ms, now)
  local run, bucket = string.match(name, '^([^:]+):'), 'fc:bucket:' .. name
  local candidates, looked, placed = {}, 0, 0
  for i = 1, #groups do
    if #groups[i].boots > 0 and fits(shape.wants, groups[i].f) and serves(groups[i], shape, run) then candidates[#candidates + 1] = groups[i] end
  end
  while #candidates > 0 and looked < limit do
    local best = 1
    for i = 2, #candidates do
      if (candidates[i].f.slot or 0) > (candidates[best].f.slot or 0) then best = i end
    end
    local group = candidates[best]
    local boot = table.remove(group.boots)
    if #group.boots == 0 then table.remove(candidates, best) end
    local record = redis.call('HMGET', 'fc:boot:' .. boot, 'template', 'queue')
    if record[1] and record[2] then -- else the boot's record is gone: nothing can be sent there
      local unit = redis.call('ZPOPMIN', bucket)[1]
      if not unit then
        group.boots[#group.boots + 1] = boot
        break
      end
      looked = looked + 1
      local own = { a = group.a, p = group.p, k = group.k, o = group.o, f = {}, boots = { boot } }
      for dim, n in pairs(group.f) do own.f[dim] = n end
      if redis.call('HGET', 'fc:unit:' .. unit, 'state') == 'pending' then
        put(unit, boot, record, shape, dispatch_ms, now)
        placed = placed + 1
        for dim, n in pairs(shape.need) do own.f[dim] = (own.f[dim] or 0) - n end
        changed[boot] = own
      end
      groups[#groups + 1] = own
      if fits(shape.wants, own.f) then candidates[#candidates + 1] = own end
    end
  end
  return looked, placed
end

-- Places at most `limit` units, on `only` alone or on every boot, looking at buckets from `cursor` on.
-- Returns how many were placed and where the next full pass goes on (0: from the start).
local function place(only, limit, cursor, dispatch_ms, now)
  if not only and not is_changed() then return 0, 0 end
  local flat
  if only then
    local text = redis.call('HGET', 'fc:free', only)
    flat = text and { only, text } or {}
  else
    flat = redis.call('HGETALL', 'fc:free')
  end
  local groups = free_groups(flat)
  local names = #groups > 0 and redis.call('ZRANGE', 'fc:buckets', cursor, cursor + MAX_BUCKETS - 1) or {}
  if #names == 0 then
    if not only and cursor == 0 then redis.call('HSET', 'fc:tick', 'changed', '0') end
    return 0, 0
  end
  local largest = {}
  for i = 1, #groups do
    for dim, n in pairs(groups[i].f) do
      if n > (largest[dim] or 0) then largest[dim] = n end
    end
  end
  local shapes, changed, looked, placed = {}, {}, 0, 0
  for i = 1, #names do
    local id = string.match(names[i], '[^:]+$')
    if shapes[id] == nil then
      local text = redis.call('HGET', 'fc:shapes', id)
      shapes[id] = text and cjson.decode(text) or false
      if shapes[id] then shapes[id].wants = wants_of(shapes[id], largest) end
    end
    if shapes[id] and fits(shapes[id].wants, largest) then
      local seen, put_there = place_bucket(names[i], shapes[id], groups, changed, limit - looked, dispatch_ms, now)
      looked, placed = looked + seen, placed + put_there
      if seen > 0 and redis.call('EXISTS', 'fc:bucket:' .. names[i]) == 0 then redis.call('ZREM', 'fc:buckets', names[i]) end
      if looked >= limit then break end
    end
  end
  for boot, group in pairs(changed) do
    redis.call('HSET', 'fc:free', boot, cjson.encode({ a = group.a, p = group.p, k = group.k, o = group.o, f = group.f }))
  end
  if looked >= limit then return placed, 0 end
  if #names == MAX_BUCKETS then return placed, cursor + MAX_BUCKETS end
  if not only and cursor == 0 then redis.call('HSET', 'fc:tick', 'changed', '0') end
  return placed, 0
end
