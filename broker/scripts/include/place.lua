-- Placement: pending units sit in buckets of (run, step, shape); a call costs buckets × distinct boots + placed, never pending.
local MAX_BUCKETS = 256

local function put_back(unit, run, step, index)
  local shape = redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  redis.call('ZADD', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, index, unit)
  local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
  if state == 'ready' or state == 'running' then open_bucket(run, step, shape) end
end

-- `wants` is a shape's need as dim, n, dim, n, … with the scarcest first: most boots are told from the first pair.
local function fits(wants, free)
  for i = 1, #wants, 2 do
    if wants[i + 1] > (free[wants[i]] or 0) then return false end
  end
  return true
end

local function wants_of(need, largest)
  local wants, scarcest, most = {}, nil, -1
  for dim, n in pairs(need) do
    local share = n / (largest[dim] or 0.001)
    if share > most then scarcest, most = dim, share end
  end
  wants[1], wants[2] = scarcest, need[scarcest]
  for dim, n in pairs(need) do
    if dim ~= scarcest then wants[#wants + 1] = dim; wants[#wants + 1] = n end
  end
  return wants
end

-- The rows of fc:free that a pass must look at: one boot's; all of them while some bucket is new; else those that have changed since the
-- last pass that left nothing undone.
local function rows_to_try(only, cursor)
  if not only and (cursor > 0 or redis.call('HGET', 'fc:tick', 'changed') ~= '0') then return redis.call('HGETALL', 'fc:free') end
  local boots = only and { only } or redis.call('SMEMBERS', 'fc:freed')
  if #boots == 0 then return {} end
  local texts, rows = redis.call('HMGET', 'fc:free', unpack(boots)), {}
  for i = 1, #boots do
    if texts[i] then
      rows[#rows + 1] = boots[i]
      rows[#rows + 1] = texts[i]
    end
  end
  return rows
end

local function nothing_left_undone()
  redis.call('HSET', 'fc:tick', 'changed', '0')
  redis.call('DEL', 'fc:freed')
end

-- A group's class is python|key,key|run: what its workers can run at all. Read once per class and call.
local function serves(group, shape, run, classes)
  local class = classes[group.c]
  if not class then
    local python, keys, only = string.match(group.c, '^([^|]*)|([^|]*)|(.*)$')
    class = { python = python, only = only, keys = {} }
    for key in string.gmatch(keys, '[^,]+') do class.keys[key] = true end
    classes[group.c] = class
  end
  return class.python == shape.python and class.keys[shape.key] and (class.only == '' or class.only == run)
end

-- Groups by what they have any of: a shape is looked for only where its rarest dimension is.
local function add_group(having, group)
  for dim, free in pairs(group.f) do
    if free > 0 then
      local groups = having.dims[dim]
      if groups then groups[#groups + 1] = group else having.dims[dim] = { group } end
    end
  end
end

local function rarest(having, need)
  local found
  for dim in pairs(need) do
    local groups = having.dims[dim]
    if not groups then return {} end
    if not found or #groups < #found then found = groups end
  end
  return found or {}
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

-- Books one unit on a boot and pushes its message; what is written per bucket and per boot is left to the caller.
local function put(unit, epoch, boot, record, row, now)
  local key = 'fc:unit:' .. unit
  redis.call('HSET', key, 'state', 'placed', 'since_ms', now, 'boot', boot, 'epoch', epoch)
  if epoch > 1 then redis.call('HDEL', key, 'nonce', 'reason') end
  redis.call('HSET', 'fc:alloc:' .. boot, unit .. '@' .. epoch, row)
  redis.call('LPUSH', record[2], message_text(record[1], unit, epoch))
  redis.call('XADD', 'fc:events:' .. split_unit(unit), '*', 'at', now, 'kind', 'trial', 'unit', unit, 'from', 'pending', 'to', 'placed',
    'epoch', epoch, 'boot', boot)
end

-- What placing the units of one bucket changes beside them: counters of the step, the run's active units, deadlines.
local function note_placed(name, units, dispatch_ms, now)
  if #units == 0 then return end
  local run, step = string.match(name, '^([^:]+):([^:]+):')
  local deadlines = {}
  for i = 1, #units do
    deadlines[#deadlines + 1] = now + dispatch_ms
    deadlines[#deadlines + 1] = units[i]
  end
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. step, 'pending', -#units)
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. step, 'placed', #units)
  redis.call('SADD', 'fc:active:' .. run, unpack(units))
  redis.call('ZADD', 'fc:deadlines', unpack(deadlines))
  redis.call('SADD', 'fc:journals', run)
end

-- Places units of one bucket on the groups that can hold its shape, the boot with most free slots first; what a boot has left makes it
-- a group of its own. Returns how many were looked at and how many placed.
local function place_bucket(name, shape, having, changed, limit, dispatch_ms, now)
  local wants, candidates = shape.wants, {}
  local groups, run = rarest(having, shape.need), string.match(name, '^[^:]+')
  for i = 1, #groups do
    local group, is_enough = groups[i], true
    local free = group.f
    for j = 1, #wants, 2 do
      if wants[j + 1] > (free[wants[j]] or 0) then
        is_enough = false
        break
      end
    end
    if is_enough and #group.boots > 0 and serves(group, shape, run, having.classes) then candidates[#candidates + 1] = group end
  end
  local looked, units, bucket = 0, {}, 'fc:bucket:' .. name
  if #candidates > 0 and not may('trial', 'pending', 'placed') then error('flowctl: pending units may not be placed') end
  while #candidates > 0 and looked < limit do
    local best = 1
    for i = 2, #candidates do
      if (candidates[i].f.slot or 0) > (candidates[best].f.slot or 0) then best = i end
    end
    local group = candidates[best]
    local boot = table.remove(group.boots)
    if #group.boots == 0 then table.remove(candidates, best) end
    group.records = group.records or {}
    local record = group.records[boot] or redis.call('HMGET', 'fc:boot:' .. boot, 'template', 'queue')
    if record[1] and record[2] then -- else the boot's record is gone: nothing can be sent there
      local unit = redis.call('ZPOPMIN', bucket)[1]
      if not unit then
        group.boots[#group.boots + 1] = boot
        break
      end
      looked = looked + 1
      local own = { a = group.a, c = group.c, f = {}, boots = { boot }, used = {}, records = { [boot] = record } }
      for name_of, free in pairs(group.f) do own.f[name_of] = free end
      if group.used then
        for name_of, used in pairs(group.used) do own.used[name_of] = used end
      end
      local state = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'epoch')
      if state[1] == 'pending' then
        shape.row = shape.row or cjson.encode({ v = shape.need, s = 'held', ms = now })
        put(unit, (tonumber(state[2]) or 0) + 1, boot, record, shape.row, now)
        units[#units + 1] = unit
        for name_of, needed in pairs(shape.need) do
          own.f[name_of] = (own.f[name_of] or 0) - needed
          own.used[name_of] = (own.used[name_of] or 0) + needed
        end
        changed[boot] = own
      end
      add_group(having, own)
      if fits(wants, own.f) then candidates[#candidates + 1] = own end
    end
  end
  note_placed(name, units, dispatch_ms, now)
  return looked, #units
end

-- Places at most `limit` units, on `only` alone or on every boot, looking at buckets from `cursor` on.
-- Returns how many were placed and where the next full pass goes on (0: from the start).
local function place(only, limit, cursor, dispatch_ms, now)
  local groups = free_groups(rows_to_try(only, cursor))
  local names = #groups > 0 and redis.call('ZRANGE', 'fc:buckets', cursor, cursor + MAX_BUCKETS - 1) or {}
  if #names == 0 then
    if not only and cursor == 0 then nothing_left_undone() end
    return 0, 0
  end
  local largest, having = {}, { dims = {}, classes = {} }
  for i = 1, #groups do
    add_group(having, groups[i])
    for dim, n in pairs(groups[i].f) do
      if n > (largest[dim] or 0) then largest[dim] = n end
    end
  end
  local shapes, ids, keys = {}, {}, {}
  for i = 1, #names do
    ids[i] = string.match(names[i], '[^:]+$')
    if shapes[ids[i]] == nil then
      shapes[ids[i]] = false
      keys[#keys + 1] = ids[i]
    end
  end
  local texts = redis.call('HMGET', 'fc:shapes', unpack(keys))
  for i = 1, #keys do
    if texts[i] then
      shapes[keys[i]] = cjson.decode(texts[i])
      shapes[keys[i]].wants = wants_of(shapes[keys[i]].need, largest)
    end
  end
  local changed, looked, placed = {}, 0, 0
  for i = 1, #names do
    local shape = shapes[ids[i]]
    if shape and fits(shape.wants, largest) then
      local seen, put_there = place_bucket(names[i], shape, having, changed, limit - looked, dispatch_ms, now)
      looked, placed = looked + seen, placed + put_there
      if seen > 0 and redis.call('EXISTS', 'fc:bucket:' .. names[i]) == 0 then redis.call('ZREM', 'fc:buckets', names[i]) end
      if looked >= limit then break end
    end
  end
  for boot, group in pairs(changed) do
    for dim, n in pairs(group.used) do redis.call('HINCRBY', 'fc:used:' .. boot, dim, n) end
    redis.call('HSET', 'fc:free', boot, cjson.encode({ a = group.a, c = group.c, f = group.f }))
  end
  if looked >= limit then return placed, 0 end
  if #names == MAX_BUCKETS then return placed, cursor + MAX_BUCKETS end
  if not only and cursor == 0 then nothing_left_undone() end
  return placed, 0
end
