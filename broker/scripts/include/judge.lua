-- Judging workers by what fails on them (design: section 6): three different trials in a row that fail within seconds of their start take a
-- worker out of service while another accepting one could hold them, unless the same fails elsewhere too; a retry avoids workers on which
-- its trial failed.
local QUICK_MS, QUICK_UNITS, MAX_AVOIDED, FORGET_MS = 10000, 3, 10, 600000

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

-- What failed, apart from its words: the same on two workers is the script's doing, not a worker's.
local function signature_of(step, cause)
  return table.concat({ step, cause.kind or '', cause.type or '', cause.place or '', tostring(cause.code or ''), tostring(cause.signal or '') }, '|')
end

local function quarantine(boot, units, signature, now)
  local reason = #units .. ' trials in a row failed within ' .. QUICK_MS / 1000 .. ' s of their start: ' .. table.concat(units, ', ')
  redis.call('HSET', 'fc:boot:' .. boot, 'state', 'quarantined', 'reason', reason, 'quarantined_ms', now, 'quarantined_for', signature)
  store_free(boot)
  look_again() -- who avoids other workers may have none left but them
end

-- Workers that were taken out of service for what turns out to fail elsewhere too come back.
local function acquit(signature)
  local boots = redis.call('ZRANGE', 'fc:boots', 0, -1)
  for i = 1, #boots do
    local key = 'fc:boot:' .. boots[i]
    local record = redis.call('HMGET', key, 'state', 'quarantined_for')
    if record[1] == 'quarantined' and record[2] == signature then
      redis.call('HSET', key, 'state', 'up')
      redis.call('HDEL', key, 'reason', 'quick', 'quarantined_ms', 'quarantined_for')
      store_free(boots[i])
    end
  end
end

-- Whether this fails on more than one worker: remembered with the step, by the first worker on which it failed, then by '*'.
local function is_scripts_doing(run, step, signature, worker)
  local key, field = 'fc:step:' .. run .. ':' .. step, 'fails:' .. signature
  local first = redis.call('HGET', key, field)
  if not first then redis.call('HSET', key, field, worker) end
  if not first or first == worker then return false end
  if first ~= '*' then
    redis.call('HSET', key, field, '*')
    acquit(run .. ':' .. signature)
  end
  return true
end

local function avoid_worker(unit, record)
  local avoid = cjson.decode(record.avoid and record.avoid ~= '' and record.avoid or '[]')
  for i = 1, #avoid do
    if avoid[i] == record.worker then return end
  end
  if not record.worker or #avoid >= MAX_AVOIDED then return end
  avoid[#avoid + 1] = record.worker
  redis.call('HSET', 'fc:unit:' .. unit, 'avoid', cjson.encode(avoid))
end

local function judge(unit, record, failed, cause, now)
  local key = 'fc:boot:' .. record.boot
  if not failed then
    redis.call('HDEL', key, 'quick')
    return
  end
  avoid_worker(unit, record)
  local run, step = split_unit(unit)
  local signature = signature_of(step, cause or {})
  if is_scripts_doing(run, step, signature, record.worker or '') then return end
  if now - tonumber(record.started_ms) > QUICK_MS then
    redis.call('HDEL', key, 'quick')
    return
  end
  if not is_other_able(record.boot, unit) then return end
  local known = redis.call('HMGET', key, 'quick', 'quick_ms', 'state')
  local quick = cjson.decode(now - (tonumber(known[2]) or 0) < FORGET_MS and known[1] or '[]')
  for i = 1, #quick do
    if quick[i] == unit then return end
  end
  quick[#quick + 1] = unit
  redis.call('HSET', key, 'quick', cjson.encode(quick), 'quick_ms', now)
  if #quick >= QUICK_UNITS and known[3] == 'up' then
    redis.call('HDEL', key, 'quick')
    quarantine(record.boot, quick, run .. ':' .. signature, now)
    take_back(record.boot, 'its worker was taken out of service', now)
    store_free(record.boot)
  end
end
