-- Where one unit goes: a boot that can hold it, or the boots of its gang; and what is written when it goes there.
local MAX_ASIDE = 500

local function record_of(room, boot)
  room.records = room.records or {}
  room.records[boot] = room.records[boot] or redis.call('HMGET', 'fc:boot:' .. boot, 'template', 'queue', 'worker')
  return room.records[boot]
end

-- Books one unit on its boots and pushes its message; what is written per bucket and per boot is left to the caller.
local function put(unit, epoch, parts, shape, room, now)
  local key, boot = 'fc:unit:' .. unit, parts[1].boot
  local record = record_of(room, boot)
  redis.call('HSET', key, 'state', 'placed', 'since_ms', now, 'boot', boot, 'epoch', epoch)
  if epoch > 1 then redis.call('HDEL', key, 'nonce', 'reason') end
  for i = 1, #parts do
    local row = { v = parts[i].v, s = 'held', ms = now }
    if i == 1 then
      row.w = shape.cost
      if next(shape.pools) then row.p = shape.pools end
    end
    redis.call('HSET', 'fc:alloc:' .. parts[i].boot, row_name(unit, epoch, i - 1), cjson.encode(row))
  end
  if #parts > 1 then
    local boots = {}
    for i = 1, #parts do boots[i] = parts[i].boot end
    redis.call('HSET', key, 'gang', cjson.encode(boots))
  end
  redis.call('LPUSH', record[2], message_text(record[1], unit, epoch))
  redis.call('XADD', 'fc:events:' .. split_unit(unit), '*', 'at', now, 'kind', 'trial', 'unit', unit, 'from', 'pending', 'to', 'placed',
    'epoch', epoch, 'boot', boot)
end

-- What placing the units of one bucket changes beside them: counters of the step, the run's active units, deadlines, pools, shares.
local function note_placed(bucket, run, dispatch_ms, now)
  local units, deadlines = bucket.units, {}
  if #units == 0 then return end
  for i = 1, #units do
    deadlines[#deadlines + 1] = now + dispatch_ms
    deadlines[#deadlines + 1] = units[i]
  end
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. bucket.step, 'pending', -#units)
  redis.call('HINCRBY', 'fc:step:' .. run .. ':' .. bucket.step, 'placed', #units)
  redis.call('SADD', 'fc:active:' .. run, unpack(units))
  redis.call('ZADD', 'fc:deadlines', unpack(deadlines))
  redis.call('SADD', 'fc:journals', run)
  add_share(run, bucket.shape.cost * #units)
  for pool, n in pairs(bucket.shape.pools) do redis.call('HINCRBY', 'fc:poolused', pool, n * #units) end
end

-- Names of accepting workers that could hold a shape of one bundle if they were idle, for a run.
local function able_workers(room, shape, run)
  shape.able = shape.able or {}
  if shape.able[run] then return shape.able[run] end
  local able, rows = {}, redis.call('HGETALL', 'fc:free')
  for i = 1, #rows, 2 do
    local row = cjson.decode(rows[i + 1])
    local class = class_of(room.classes, row.c)
    if row.a == 1 and takes_run(class, run) and serves(class, shape, shape.bundles[1]) then
      local idle = as_room(redis.call('HGETALL', 'fc:offer:' .. rows[i]), {})
      if fits(shape.wants, idle) then able[record_of(room, rows[i])[3] or rows[i]] = true end
    end
  end
  shape.able[run] = able
  return able
end

-- Workers on which this unit failed are left to others while another could hold it.
local function avoided(room, shape, run, avoid_json)
  if not avoid_json or avoid_json == '' or #shape.bundles > 1 then return nil end
  local avoid, names = {}, cjson.decode(avoid_json)
  for i = 1, #names do avoid[names[i]] = true end
  for worker in pairs(able_workers(room, shape, run)) do
    if not avoid[worker] then return avoid end
  end
  return nil
end

-- Lower is better: a boot with devices comes after those without for a shape that asks for none; then most free slots first.
local function rank_of(group, shape)
  return (group.d and not shape.gpu and 1e9 or 0) - (group.f.slot or 0)
end

-- The best candidate, with the place of one of its boots. What is taken only ever makes ranks worse, so that a candidate as good as the
-- last one is the best: the search goes on from there.
local function best_candidate(room, shape, run, avoid)
  local list = candidates_of(room, shape)
  local best, best_at, best_rank, best_i
  local i, left = shape.cursor or 1, #list
  while left > 0 do
    if i > #list then i = 1 end
    local group = list[i]
    left = left - 1
    if #group.boots == 0 then
      list[i] = list[#list]
      list[#list] = nil
    else
      local rank = rank_of(group, shape)
      if not best or rank < best_rank then
        local at = #group.boots
        if avoid then
          while at > 0 and avoid[record_of(room, group.boots[at])[3] or ''] do at = at - 1 end
        end
        if at > 0 and takes_run(class_of(room.classes, group.c), run) then
          best, best_at, best_rank, best_i = group, at, rank, i
          if rank == shape.best_rank then break end
        end
      end
      i = i + 1
    end
  end
  if best and not avoid then shape.cursor, shape.best_rank = best_i, best_rank end
  return best, best_at
end

local function seat_one(room, shape, run, avoid, group, at)
  if avoid or not group then group, at = best_candidate(room, shape, run, avoid) end
  if not group then return nil end
  local f, d = copy_room(group)
  local vector = take(f, d, shape.bundles[1].need)
  return { { boot = move_boot(room, group, at, f, d, vector), v = vector } }
end

local function seat(room, shape, run, avoid, group, at)
  if #shape.bundles == 1 then return seat_one(room, shape, run, avoid, group, at) end
  local plan = seat_gang(room, shape, run)
  if not plan then return nil end
  take_gang(room, plan)
  return plan.parts
end

-- A candidate that messages can be sent to: the record of a boot may be gone.
local function reachable_candidate(room, shape, run)
  local group, at = best_candidate(room, shape, run)
  while group and not record_of(room, group.boots[at])[2] do
    table.remove(group.boots, at)
    group, at = best_candidate(room, shape, run)
  end
  return group, at
end

-- Places the next unit of a bucket, or sets it aside. Returns how many were placed, and whether the bucket may have more for this room.
local function place_next(bucket, entry, room, pools, now)
  local shape, run, key = bucket.shape, entry.run, 'fc:bucket:' .. bucket.name
  if not has_turn(entry, bucket) then return 0, false end
  for pool, n in pairs(shape.pools) do
    if pools[pool].free < n then return 0, false end
  end
  local group, at
  if #shape.bundles == 1 then -- a gang is told when it is tried
    group, at = reachable_candidate(room, shape, run)
    if not group then return 0, false end
  end
  local head = redis.call('ZPOPMIN', key)
  local unit = head[1]
  bucket.head = nil
  if not unit then
    if not bucket.aside then unlist_bucket(bucket.name) end
    return 0, false
  end
  local state = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'epoch', 'avoid')
  if state[1] ~= 'pending' then return 1, true end
  local parts = seat(room, shape, run, avoided(room, shape, run, state[3]), group, at)
  if not parts then
    bucket.aside = bucket.aside or {}
    bucket.aside[#bucket.aside + 1] = head[2]
    bucket.aside[#bucket.aside + 1] = unit
    return 0, #shape.bundles == 1 and #bucket.aside < 2 * MAX_ASIDE
  end
  put(unit, (tonumber(state[2]) or 0) + 1, parts, shape, room, now)
  bucket.units[#bucket.units + 1] = unit
  note_turn(entry, bucket)
  for pool, n in pairs(shape.pools) do pools[pool].free = pools[pool].free - n end
  return 1, true
end

local function close_bucket(bucket, run, dispatch_ms, now)
  if bucket.aside then redis.call('ZADD', 'fc:bucket:' .. bucket.name, unpack(bucket.aside)) end
  note_placed(bucket, run, dispatch_ms, now)
  if redis.call('EXISTS', 'fc:bucket:' .. bucket.name) == 0 then unlist_bucket(bucket.name) end
end
