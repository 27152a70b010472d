-- Judging workers by what fails on them (design: section 6): three different trials in a row that fail within seconds of their start take a
-- worker out of service while another accepting one could hold them; a retry avoids workers on which its trial failed.
local QUICK_MS, QUICK_UNITS, MAX_AVOIDED = 10000, 3, 10

local function is_other_able(boot, unit)
  local shape_id = redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  local text = shape_id and redis.call('HGET', 'fc:shapes', shape_id)
  if not text then return false end
  local room = open_room({}, {})
  local shape = load_shape(text, room.largest, read_pools({}), {})
  local worker = redis.call('HGET', 'fc:boot:' .. boot, 'worker')
  for other in pairs(able_workers(room, shape, (split_unit(unit)))) do
    if other ~= worker then return true end
  end
  return false
end

local function quarantine(boot, units, now)
  local reason = #units .. ' trials in a row failed within ' .. QUICK_MS / 1000 .. ' s of their start: ' .. table.concat(units, ', ')
  redis.call('HSET', 'fc:boot:' .. boot, 'state', 'quarantined', 'reason', reason, 'quarantined_ms', now)
  store_free(boot)
  look_again() -- who avoids other workers may have none left but them
end

local function judge(unit, record, failed, now)
  local key = 'fc:boot:' .. record.boot
  if not failed then
    redis.call('HDEL', key, 'quick')
    return
  end
  local avoid = cjson.decode(record.avoid and record.avoid ~= '' and record.avoid or '[]')
  local is_known = false
  for i = 1, #avoid do is_known = is_known or avoid[i] == record.worker end
  if not is_known and record.worker and #avoid < MAX_AVOIDED then
    avoid[#avoid + 1] = record.worker
    redis.call('HSET', 'fc:unit:' .. unit, 'avoid', cjson.encode(avoid))
  end
  if now - tonumber(record.started_ms) > QUICK_MS then
    redis.call('HDEL', key, 'quick')
    return
  end
  local quick = cjson.decode(redis.call('HGET', key, 'quick') or '[]')
  for i = 1, #quick do
    if quick[i] == unit then return end
  end
  quick[#quick + 1] = unit
  if #quick >= QUICK_UNITS and redis.call('HGET', key, 'state') == 'up' and is_other_able(record.boot, unit) then
    redis.call('HDEL', key, 'quick')
    quarantine(record.boot, quick, now)
    take_back(record.boot, 'its worker was taken out of service', now)
    store_free(record.boot)
  else
    while #quick > 10 do table.remove(quick, 1) end
    redis.call('HSET', key, 'quick', cjson.encode(quick))
  end
end
