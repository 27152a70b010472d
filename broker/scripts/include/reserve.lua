-- The reservation: what has waited too long, and could run, gets boots kept for it, one request at a time. Others take there only what is
-- free beyond it. It lapses when its boots could no longer meet it, and is thought over after as long a wait again.
local function subtract(f, d, vector)
  for dim, n in pairs(vector) do
    if f[dim] then f[dim] = f[dim] - n end
  end
  if not d then return end
  for i = 1, #d do d[i][2] = d[i][2] - (vector['gpu:' .. d[i][1]] or 0) end
  note_devices(f, d)
end

local function covers(f, d, vector)
  local devices = {}
  for i = 1, #(d or {}) do devices['gpu:' .. d[i][1]] = d[i][2] end
  for dim, n in pairs(vector) do
    if n > (devices[dim] or f[dim] or 0) then return false end
  end
  return true
end

local function holds_of(kept)
  local holds = {}
  for i = 1, #kept.parts do
    local hold = holds[kept.parts[i].boot] or {}
    for dim, n in pairs(kept.parts[i].v) do hold[dim] = (hold[dim] or 0) + n end
    holds[kept.parts[i].boot] = hold
  end
  return holds
end

local function as_entry(kept, shape)
  local bucket = { name = kept.name, step = kept.step, shape = shape, order = 0, units = {} }
  local entry = { run = kept.run, order = 0, account = new_account(), buckets = { bucket } }
  read_limits({ entry })
  return entry, bucket
end

-- Places the reserved unit on its boots if all that is kept there is free.
local function place_reserved(kept, holds, dispatch_ms, now)
  local flat = {}
  for boot in pairs(holds) do
    local text = redis.call('HGET', 'fc:free', boot)
    if not text then return false end
    flat[#flat + 1], flat[#flat + 2] = boot, text
  end
  local room, pools = open_room(flat, {}), read_pools({})
  for i = 1, #room.all do
    local group = room.all[i]
    for j = 1, #group.boots do
      if not covers(group.f, group.d, holds[group.boots[j]]) then return false end
    end
  end
  if #room.all == 0 then return false end
  local seated = 0
  for i = 1, #room.all do seated = seated + #room.all[i].boots end
  if seated * 2 < #flat then return false end -- one of them does not accept
  local text = redis.call('HGET', 'fc:shapes', string.match(kept.name, '[^:]+$'))
  local shape = text and load_shape(text, room.largest, pools, as_map(redis.call('HGETALL', 'fc:total')))
  if not shape then return false end
  for pool, n in pairs(shape.pools) do
    if pools[pool].free < n then return false end
  end
  local entry, bucket = as_entry(kept, shape)
  local record = redis.call('HMGET', 'fc:unit:' .. kept.unit, 'state', 'epoch')
  if not has_turn(entry, bucket) or record[1] ~= 'pending' or not record_of(room, kept.parts[1].boot)[2] then return false end
  local groups = #room.all
  for i = 1, groups do
    local group = room.all[i]
    while #group.boots > 0 do
      local boot = group.boots[#group.boots]
      local f, d = copy_room(group)
      subtract(f, d, holds[boot])
      move_boot(room, group, #group.boots, f, d, holds[boot])
    end
  end
  redis.call('ZREM', 'fc:bucket:' .. kept.name, kept.unit)
  put(kept.unit, (tonumber(record[2]) or 0) + 1, kept.parts, shape, room, now)
  bucket.units[1] = kept.unit
  close_bucket(bucket, kept.run, dispatch_ms, now)
  close_room(room)
  return true
end

local function drop_reservation()
  redis.call('DEL', 'fc:reserve')
  look_again()
end

-- Pools that came or went since change what the request takes from where.
local function is_as_asked(kept)
  local pools = as_map(redis.call('HGETALL', 'fc:pools'))
  for pool in pairs(kept.pools) do
    if not pools[pool] then return false end
  end
  for i = 1, #kept.parts do
    for dim in pairs(kept.parts[i].v) do
      if pools[dim] then return false end
    end
  end
  return true
end

-- What boots are kept for, while it waits: else it is dropped, and others may have them at once.
local function read_reservation()
  local text = redis.call('GET', 'fc:reserve')
  if not text then return nil end
  local kept = cjson.decode(text)
  local is_waiting = redis.call('ZSCORE', 'fc:bucket:' .. kept.name, kept.unit) and redis.call('ZSCORE', 'fc:buckets', kept.name)
  if is_waiting and is_as_asked(kept) then return kept end
  drop_reservation()
  return nil
end

-- Before anything else is placed: the reserved unit, or what is kept for it.
local function use_reservation(kept, only, dispatch_ms, now)
  if not kept then return { placed = 0, boots = {}, pools = {} } end
  local holds = holds_of(kept)
  if (not only or holds[only]) and place_reserved(kept, holds, dispatch_ms, now) then
    redis.call('DEL', 'fc:reserve')
    return { placed = 1, boots = {}, pools = {} }
  end
  return { placed = 0, boots = holds, pools = kept.pools }
end

-- Every accepting boot as if it were idle, those with most free slots first.
local function idle_rows()
  local rows, boots, flat = redis.call('HGETALL', 'fc:free'), {}, {}
  for i = 1, #rows, 2 do
    local row = cjson.decode(rows[i + 1])
    if row.a == 1 then boots[#boots + 1] = { boot = rows[i], c = row.c, slots = row.f.slot or 0 } end
  end
  table.sort(boots, function(a, b)
    if a.slots ~= b.slots then return a.slots > b.slots end
    return a.boot < b.boot
  end)
  for i = 1, #boots do
    local devices = redis.call('HGET', 'fc:boot:' .. boots[i].boot, 'devices')
    local f, d = as_room(redis.call('HGETALL', 'fc:offer:' .. boots[i].boot), {}, devices)
    flat[#flat + 1], flat[#flat + 2] = boots[i].boot, cjson.encode({ a = 1, c = boots[i].c, f = f, d = d })
  end
  return flat
end

-- The boot whose free tokens come nearest to one bundle, of those that could hold it if idle; a gang is seated as on an idle cluster.
local function parts_for(room, shape, run, avoid)
  if #shape.bundles > 1 then
    local plan = seat_gang(room, shape, run)
    return plan and plan.parts
  end
  local best, best_lack
  local list = candidates_of(room, shape)
  for i = 1, #list do
    if takes_run(class_of(room.classes, list[i].c), run) then
      for j = 1, #list[i].boots do
        local boot, lack = list[i].boots[j], 0
        if not (avoid and avoid[record_of(room, boot)[3] or '']) then
          local now_free = cjson.decode(redis.call('HGET', 'fc:free', boot)).f
          for k = 1, #shape.wants, 2 do
            lack = math.max(lack, (shape.wants[k + 1] - (now_free[shape.wants[k]] or 0)) / shape.wants[k + 1])
          end
          if not best or lack < best_lack then best, best_lack = { boot = boot, group = list[i] }, lack end
        end
      end
    end
  end
  if not best then return nil end
  local f, d = copy_room(best.group)
  return { { boot = best.boot, v = take(f, d, shape.bundles[1].need) } }
end

-- Whether its boots and pools could still meet the request if they were idle.
local function keeps(kept)
  for pool, n in pairs(kept.pools) do
    if count('fc:pools', pool) < n then return false end
  end
  for boot, hold in pairs(holds_of(kept)) do
    local row = redis.call('HGET', 'fc:free', boot)
    if not row or cjson.decode(row).a ~= 1 then return false end
    local f, d = as_room(redis.call('HGETALL', 'fc:offer:' .. boot), {})
    if not covers(f, d, hold) then return false end
  end
  return true
end

-- Since when the first of a bucket waits: since it is pending and its step may run.
local function waits_since(name)
  local head = redis.call('ZRANGE', 'fc:bucket:' .. name, 0, 0)[1]
  local since = head and tonumber(redis.call('HGET', 'fc:unit:' .. head, 'since_ms'))
  local ready = tonumber(redis.call('HGET', 'fc:step:' .. string.match(name, '^[^:]+:[^:]+'), 'ready_ms'))
  return since and math.max(since, ready or since), head
end

local function waits_long(now, reserve_ms)
  local names = redis.call('ZRANGE', 'fc:buckets', 0, MAX_BUCKETS - 1)
  for i = 1, #names do
    local since = waits_since(names[i])
    if since and now - since >= reserve_ms then return true end
  end
  return false
end

-- Called ten times per reserve_ms: the first request in order that waited so long and that the accepting workers could meet if idle.
local function reserve(now, reserve_ms)
  local kept = read_reservation()
  if kept then
    if now - kept.ms < reserve_ms and keeps(kept) then return end
    drop_reservation()
  end
  if not waits_long(now, reserve_ms) then return end
  local room, pools = open_room(idle_rows(), {}), read_pools({})
  for _, pool in pairs(pools) do pool.free = pool.size end
  local levels = read_queue(waiting_shapes(0), room, pools)
  for l = 1, #levels do
    local runs = levels[l].runs
    while #runs > 0 do
      local r = next_run(runs)
      local entry = runs[r]
      while #buckets_in(entry) > 0 do
        local b = next_bucket(entry)
        local bucket = entry.buckets[b]
        local since, unit = waits_since(bucket.name)
        if not since or now - since < reserve_ms then unit = nil end
        local avoid = unit and avoided(room, bucket.shape, entry.run, redis.call('HGET', 'fc:unit:' .. unit, 'avoid'))
        local parts = unit and has_turn(entry, bucket) and parts_for(room, bucket.shape, entry.run, avoid)
        if parts then
          local plain = {}
          for i = 1, #parts do plain[i] = { boot = parts[i].boot, v = parts[i].v } end
          redis.call('SET', 'fc:reserve', cjson.encode({ unit = unit, name = bucket.name, run = entry.run, step = bucket.step, ms = now, parts = plain,
            pools = bucket.shape.pools }))
          look_again() -- it may go there at once
          return
        end
        table.remove(entry.buckets, b)
      end
      table.remove(runs, r)
    end
  end
end
