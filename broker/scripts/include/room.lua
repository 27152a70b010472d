-- What is free where, as one call sees it: boots with equal rows in fc:free are one group, asked once for all of them. A group never changes:
-- a boot that is booked on leaves it and begins a group of its own.

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

-- `wants` is a bundle's need as dim, n, dim, n, … with the scarcest first: most boots are told from the first pair.
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
  if not scarcest then return wants end
  wants[1], wants[2] = scarcest, need[scarcest]
  for dim, n in pairs(need) do
    if dim ~= scarcest then wants[#wants + 1] = dim; wants[#wants + 1] = n end
  end
  return wants
end

-- Groups are of one kind if they have some of the same dimensions: a shape looks only at kinds that have enough of each somewhere.
local function add_group(room, group)
  local mask, bits, largest = 0, room.bits, room.largest
  for dim, free in pairs(group.f) do
    if free > 0 then
      local bit = bits[dim]
      if not bit then
        bit = 2 ^ room.n_bits
        bits[dim], room.n_bits = bit, room.n_bits + 1
      end
      mask = mask + bit
      if free > (largest[dim] or 0) then largest[dim] = free end
    end
  end
  local kind = room.by_mask[mask]
  if not kind then
    kind = { groups = {}, largest = {} }
    room.by_mask[mask], room.kinds[#room.kinds + 1] = kind, kind
  end
  kind.groups[#kind.groups + 1] = group
  local most = kind.largest
  for dim, free in pairs(group.f) do
    if free > (most[dim] or 0) then most[dim] = free end
  end
end

local function hold_back(group, hold)
  for dim, n in pairs(hold) do
    if group.f[dim] then group.f[dim] = group.f[dim] - n end
  end
  if not group.d then return end
  for i = 1, #group.d do group.d[i][2] = group.d[i][2] - (hold['gpu:' .. group.d[i][1]] or 0) end
  note_devices(group.f, group.d)
end

-- `holds`: boot → what is kept there for the one request that has a reservation.
local function open_room(flat, holds)
  local room, by_text = { kinds = {}, by_mask = {}, bits = {}, n_bits = 0, classes = {}, changed = {}, largest = {}, all = {} }, {}
  for i = 1, #flat, 2 do
    local boot, text = flat[i], flat[i + 1]
    local hold = holds[boot]
    local group = not hold and by_text[text]
    if not group then
      group = cjson.decode(text)
      group.boots, group.hold = {}, hold
      if hold then hold_back(group, hold) else by_text[text] = group end
      if group.a == 1 then
        add_group(room, group)
        room.all[#room.all + 1] = group
      end
    end
    group.boots[#group.boots + 1] = boot
  end
  return room
end

local function class_of(classes, text)
  local class = classes[text]
  if class then return class end
  local python, keys, only, labels = string.match(text, '^([^|]*)|([^|]*)|([^|]*)|(.*)$')
  class = { python = python, only = only, keys = {}, labels = {} }
  for key in string.gmatch(keys, '[^,]+') do class.keys[key] = true end
  for label in string.gmatch(labels, '[^,]+') do class.labels[label] = true end
  classes[text] = class
  return class
end

-- Whether workers of a class can run a bundle of a shape at all. Which run they are kept for is asked apart.
local function serves(class, shape, bundle)
  if class.python ~= shape.python or not class.keys[shape.key] then return false end
  for i = 1, #(bundle.labels or {}) do
    local refused = string.match(bundle.labels[i], '^!(.+)$')
    if refused and class.labels[refused] or not refused and not class.labels[bundle.labels[i]] then return false end
  end
  return true
end

local function takes_run(class, run)
  return class.only == '' or class.only == run
end

-- Looks at further groups for a shape of one bundle: all that were not looked at yet, or until the first that can hold it.
local function look_for(room, shape, is_one_enough)
  shape.list, shape.seen = shape.list or {}, shape.seen or {}
  local list, wants, bundle = shape.list, shape.wants, shape.bundles[1]
  for k = 1, #room.kinds do
    local kind = room.kinds[k]
    local groups, seen = kind.groups, shape.seen[k] or 0
    if seen < #groups and fits(wants, kind.largest) then
      for i = seen + 1, #groups do
        shape.seen[k] = i
        local group = groups[i]
        if fits(wants, group.f) and serves(class_of(room.classes, group.c), shape, bundle) then
          list[#list + 1] = group
          if is_one_enough then return end
        end
      end
    end
  end
end

-- Groups that can hold a shape of one bundle now; those that were born since the last look are looked at too.
local function candidates_of(room, shape)
  look_for(room, shape, false)
  return shape.list
end

local function has_candidate(room, shape)
  if not shape.list then look_for(room, shape, true) end
  return #shape.list > 0
end

-- A share comes from device `at`, or from the fullest that has it; whole devices are the first that are free.
local function devices_for(devices, n, at)
  local vector = {}
  if n <= WHOLE then
    local best = at
    for i = 1, at and 0 or #devices do
      if devices[i][2] >= n and (not best or devices[i][2] < devices[best][2]) then best = i end
    end
    vector['gpu:' .. devices[best][1]] = n
    devices[best][2] = devices[best][2] - n
    return vector
  end
  local left = n / WHOLE
  for i = 1, #devices do
    if left > 0 and devices[i][2] >= WHOLE then
      vector['gpu:' .. devices[i][1]] = WHOLE
      devices[i][2] = devices[i][2] - WHOLE
      left = left - 1
    end
  end
  return vector
end

-- Takes a bundle's need from (f, d) and returns it as booked: devices by their ids.
local function take(f, d, need, at)
  local vector = {}
  for dim, n in pairs(need) do
    if dim == 'gpu' then
      for device, part in pairs(devices_for(d, n, at)) do vector[device] = part end
      note_devices(f, d)
    else
      f[dim] = (f[dim] or 0) - n
      vector[dim] = n
    end
  end
  return vector
end

local function copy_room(group)
  local f, d = {}, nil
  for dim, free in pairs(group.f) do f[dim] = free end
  if group.d then
    d = {}
    for i = 1, #group.d do d[i] = { group.d[i][1], group.d[i][2] } end
  end
  return f, d
end

-- A boot leaves its group with (f, d) free and `vector` newly booked on it.
local function move_boot(room, group, at, f, d, vector)
  local boot = group.boots[at]
  group.boots[at] = group.boots[#group.boots]
  group.boots[#group.boots] = nil
  local own = { a = group.a, c = group.c, f = f, d = d, boots = { boot }, used = {}, hold = group.hold, records = group.records }
  if group.used then
    for dim, n in pairs(group.used) do own.used[dim] = n end
  end
  for dim, n in pairs(vector) do own.used[dim] = (own.used[dim] or 0) + n end
  room.changed[boot] = own
  room.all[#room.all + 1] = own
  add_group(room, own)
  return boot
end

-- What was booked in the room is written: sums and rows of fc:free, once per boot.
local function close_room(room)
  for boot, group in pairs(room.changed) do
    for dim, n in pairs(group.used) do redis.call('HINCRBY', 'fc:used:' .. boot, dim, n) end
    if group.hold then
      for dim, n in pairs(group.hold) do
        if group.f[dim] then group.f[dim] = group.f[dim] + n end
      end
      if group.d then
        for i = 1, #group.d do group.d[i][2] = group.d[i][2] + (group.hold['gpu:' .. group.d[i][1]] or 0) end
        note_devices(group.f, group.d)
      end
    end
    redis.call('HSET', 'fc:free', boot, cjson.encode({ a = group.a, c = group.c, f = group.f, d = group.d }))
  end
end
