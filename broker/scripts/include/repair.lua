-- Repair (on_bundle_loss = "repair"): an attempt that lost a bundle goes on with the rest; the bundle is placed anew, before other work of
-- equal priority, by its strategy against the survivors. Its place in the gang is '' meanwhile; fc:repairs names its row.
local function lose_bundle(unit, record, bundle, text, now)
  local boots = cjson.decode(record.gang)
  local boot, name = boots[bundle + 1], row_name(unit, record.epoch, bundle)
  unbook(boot, name)
  boots[bundle + 1] = ''
  redis.call('HSET', 'fc:unit:' .. unit, 'gang', cjson.encode(boots))
  local run, step = split_unit(unit)
  redis.call('ZADD', 'fc:repairs', redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'order'), name)
  local host_text = redis.call('HGET', 'fc:hosts:' .. unit, bundle)
  local host = host_text and cjson.decode(host_text)
  if host and (host.state == 'placed' or host.state == 'running') then
    end_host(unit, record.epoch, bundle, host, 'lost', { text = text }, true, now)
  end
  event(run, now, 'bundle', 'unit', unit, 'bundle', bundle, 'state', 'lost', 'boot', boot, 'reason', text)
  redis.call('SADD', 'fc:attention:' .. record.boot, unit)
  look_again()
end

local function machines_of(boots)
  local machines = {}
  for i = 1, #boots do
    if boots[i] ~= '' then machines[redis.call('HGET', 'fc:boot:' .. boots[i], 'machine') or boots[i]] = true end
  end
  return machines
end

-- Seats of the room in the order that the strategy prefers, those that it forbids left out.
local function seats_for(room, shape, run, boots)
  local with, preferred, others = machines_of(boots), {}, {}
  local wants_same = shape.strategy == 'PACK' or shape.strategy == 'STRICT_PACK'
  local is_strict = shape.strategy == 'STRICT_PACK' or shape.strategy == 'STRICT_SPREAD'
  for _, seat in ipairs(seats_of(room, shape, run)) do
    if (with[seat.machine] or false) == wants_same then preferred[#preferred + 1] = seat
    elseif not is_strict then others[#others + 1] = seat end
  end
  for i = 1, #others do preferred[#preferred + 1] = others[i] end
  return preferred
end

local function repair_one(name, room, pools, now)
  local unit, epoch, bundle = split_row(name)
  local run = split_unit(unit)
  local record = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'epoch', 'gang', 'shape', 'boot')
  local boots = record[3] and record[3] ~= '' and cjson.decode(record[3]) or {}
  if record[1] ~= 'running' or record[2] ~= epoch or boots[bundle + 1] ~= '' then
    redis.call('ZREM', 'fc:repairs', name)
    return false
  end
  -- what it has of pools stands in its first row, whatever became of them since
  local head, own = cjson.decode(redis.call('HGET', 'fc:alloc:' .. record[5], row_name(unit, epoch))), {}
  for pool in pairs(head.p or {}) do own[pool] = pools[pool] or { size = 0, free = 0 } end
  local shape = load_shape(redis.call('HGET', 'fc:shapes', record[4]), room.largest, own, {})
  local one = shape.bundles[bundle + 1]
  for _, seat in ipairs(seats_for(room, shape, run, boots)) do
    if fits(one.wants, seat.group.f) and serves(seat.class, shape, one) then
      local f, d = copy_room(seat.group)
      local vector = take(f, d, one.need)
      for at = 1, #seat.group.boots do
        if seat.group.boots[at] == seat.boot then
          move_boot(room, seat.group, at, f, d, vector)
          break
        end
      end
      redis.call('HSET', 'fc:alloc:' .. seat.boot, name, cjson.encode({ v = vector, s = 'held', ms = now }))
      boots[bundle + 1] = seat.boot
      redis.call('HSET', 'fc:unit:' .. unit, 'gang', cjson.encode(boots))
      redis.call('ZREM', 'fc:repairs', name)
      event(run, now, 'bundle', 'unit', unit, 'bundle', bundle, 'state', 'repaired', 'boot', seat.boot)
      redis.call('SADD', 'fc:attention:' .. record[5], unit)
      return true
    end
  end
  return false
end

-- Repairs of at least this priority that the room can hold.
local function repair(room, pools, priority, now)
  local highest = priority and string.format('(%.0f', (1 - priority) * PRIORITY) or '+inf'
  local names = redis.call('ZRANGEBYSCORE', 'fc:repairs', '-inf', highest, 'LIMIT', 0, 64)
  for i = 1, #names do repair_one(names[i], room, pools, now) end
end
