-- Tokens: one row per bundle of an attempt is the truth; the sums (fc:used, fc:poolused, fc:shares) and what is free (fc:free) are written
-- only with a row. A device is a dimension of its own, gpu:<id>. A row is named unit@epoch, its further bundles unit@epoch#1, #2, …
local WHOLE = 10000

local function row_name(unit, epoch, bundle)
  return unit .. '@' .. epoch .. ((bundle or 0) > 0 and '#' .. bundle or '')
end

local function split_row(name)
  local unit, epoch, bundle = string.match(name, '^(.*)@(%d+)#?(%d*)$')
  return unit, epoch, tonumber(bundle) or 0
end

-- What placement asks of a boot's devices: the largest share that one of them has free, and how many are wholly free.
local function note_devices(free, devices)
  local part, whole = 0, 0
  for i = 1, #devices do
    local n = devices[i][2]
    if n > part then part = n end
    if n >= WHOLE then whole = whole + 1 end
  end
  free['gpu.part'], free['gpu.whole'] = part, whole
end

-- Dimensions with their units as placement reads them: scalars, and the devices in the order of the worker.
local function as_room(flat, used, order_json)
  local free, devices, rank = {}, {}, {}
  for i = 1, #flat, 2 do
    local dim = flat[i]
    local n, id = tonumber(flat[i + 1]) - (tonumber(used[dim]) or 0), string.match(dim, '^gpu:(.+)$')
    if id then devices[#devices + 1] = { id, n } else free[dim] = n end
  end
  if #devices == 0 then return free end
  local order = cjson.decode(order_json and order_json ~= '' and order_json or '[]')
  for i = 1, #order do rank[order[i].id] = i end
  table.sort(devices, function(a, b)
    local left, right = rank[a[1]] or WHOLE, rank[b[1]] or WHOLE
    if left ~= right then return left < right end
    return a[1] < b[1]
  end)
  note_devices(free, devices)
  return free, devices
end

-- A boot's class is python|key,key|run|label,label: what it can run at all.
local function store_free(boot)
  redis.call('SADD', 'fc:freed', boot)
  local record = redis.call('HMGET', 'fc:boot:' .. boot, 'accepting', 'python', 'keys', 'only', 'state', 'labels', 'devices')
  if not record[5] or record[5] == 'gone' then
    redis.call('HDEL', 'fc:free', boot)
    return
  end
  local used = as_map(redis.call('HGETALL', 'fc:used:' .. boot))
  local free, devices = as_room(redis.call('HGETALL', 'fc:offer:' .. boot), used, record[7])
  redis.call('HSET', 'fc:free', boot, cjson.encode({
    a = (record[5] == 'up' and record[1] == '1') and 1 or 0,
    c = (record[2] or '') .. '|' .. table.concat(cjson.decode(record[3] or '[]'), ',') .. '|' .. (record[4] or '') .. '|'
      .. table.concat(cjson.decode(record[6] and record[6] ~= '' and record[6] or '[]'), ','),
    f = free, d = devices,
  }))
end

-- Offers change only here: fc:total is their sum over all boots, devices counted as gpu.
local function set_offer(boot, dim, n)
  local was = count('fc:offer:' .. boot, dim)
  redis.call('HSET', 'fc:offer:' .. boot, dim, n)
  if n ~= was then redis.call('HINCRBY', 'fc:total', string.match(dim, '^gpu:') and 'gpu' or dim, n - was) end
end

local function clear_offer(boot)
  local dims = redis.call('HKEYS', 'fc:offer:' .. boot)
  for i = 1, #dims do set_offer(boot, dims[i], 0) end
  redis.call('DEL', 'fc:offer:' .. boot)
end

-- A run's share: the sum of what its rows cost, in billionths of the cluster.
local function add_share(run, cost)
  if cost ~= 0 and redis.call('HINCRBY', 'fc:shares', run, cost) == 0 then redis.call('HDEL', 'fc:shares', run) end
end

local function add_sums(boot, run, row, sign)
  for dim, n in pairs(row.v) do redis.call('HINCRBY', 'fc:used:' .. boot, dim, sign * n) end
  for pool, n in pairs(row.p or {}) do
    if redis.call('HINCRBY', 'fc:poolused', pool, sign * n) == 0 then redis.call('HDEL', 'fc:poolused', pool) end
  end
  add_share(run, sign * (row.w or 0))
end

local function book(boot, name, row)
  redis.call('HSET', 'fc:alloc:' .. boot, name, cjson.encode(row))
  add_sums(boot, (split_unit((split_row(name)))), row, 1)
end

-- A message that a worker took is forgotten here: its worker may be killed before it acknowledges what it has done.
local function forget_message(unit, epoch)
  local tag = 'fc.' .. unit .. '.' .. epoch
  redis.call('ZREM', 'fc:unacked_index', tag)
  redis.call('HDEL', 'fc:unacked', tag)
end

-- Returns true if there was a row. The caller refreshes fc:free with store_free.
local function unbook(boot, name)
  local row = redis.call('HGET', 'fc:alloc:' .. boot, name)
  if not row then return false end
  local unit, epoch, bundle = split_row(name)
  if bundle == 0 then forget_message(unit, epoch) end
  redis.call('HDEL', 'fc:alloc:' .. boot, name)
  row = cjson.decode(row)
  add_sums(boot, (split_unit(unit)), row, -1)
  if row.p then look_again() end -- who waits for a pool may find its place on any boot
  return true
end

-- The tokens of a lost unit stay booked on its boot until that boot says that nothing of it runs any more.
local function orphan(boot, name)
  local row = redis.call('HGET', 'fc:alloc:' .. boot, name)
  if not row then return end
  local value = cjson.decode(row)
  value.s = 'orphan'
  redis.call('HSET', 'fc:alloc:' .. boot, name, cjson.encode(value))
end

local function message_text(template, unit, epoch)
  local text = string.gsub(template, '@@UNIT@@', unit)
  text = string.gsub(text, '@@EPOCH@@', tostring(epoch))
  return text
end

local function message_of(boot, unit, epoch)
  local record = redis.call('HMGET', 'fc:boot:' .. boot, 'template', 'queue')
  if not record[1] or not record[2] then return nil end
  return message_text(record[1], unit, epoch), record[2]
end

-- Removes exactly the message of (unit, epoch), wherever Celery has it.
local function withdraw(boot, unit, epoch)
  local text, queue = message_of(boot, unit, epoch)
  if text then redis.call('LREM', queue, 0, text) end
  forget_message(unit, epoch)
end

-- A bundle that hosts something returns when its host says that its tree is gone, or its boot does, HOST_MS later: a beat may have been on
-- its way before the host began. Its host's guardian is told. False if it hosts nothing.
local HOST_MS = 5000

local function let_go(boot, name)
  local text = redis.call('HGET', 'fc:alloc:' .. boot, name)
  local row = text and cjson.decode(text)
  if not row or not row.h then return false end
  row.s, row.after = 'orphan', now_ms() + HOST_MS
  redis.call('HSET', 'fc:alloc:' .. boot, name, cjson.encode(row))
  local unit, epoch, bundle = split_row(name)
  redis.call('ZREM', 'fc:deadlines', name .. '.' .. row.h)
  redis.call('SADD', 'fc:attention:' .. boot, name)
  withdraw(boot, unit, epoch .. '#' .. bundle .. '.' .. row.h)
  return true
end

-- An attempt is over: its tokens return, all bundles of them; what may still run on its own boot (not certain) turns orphan there.
local function give_back(unit, record, certain)
  local name = row_name(unit, record.epoch)
  if certain then unbook(record.boot, name) else orphan(record.boot, name) end
  store_free(record.boot)
  if not record.gang or record.gang == '' then return end
  local boots = cjson.decode(record.gang)
  for i = 2, #boots do
    local row = row_name(unit, record.epoch, i - 1)
    if boots[i] == '' then redis.call('ZREM', 'fc:repairs', row)
    elseif not let_go(boots[i], row) and unbook(boots[i], row) then store_free(boots[i]) end
  end
  redis.call('HDEL', 'fc:unit:' .. unit, 'gang')
  redis.call('DEL', 'fc:hosts:' .. unit)
end

-- What a boot can offer of what it detected, the rest being offered by others of its machine; never less than it offers now.
local function detected_left(boot, detected, others, devices_json, gpu_limit)
  local offer, devices, room = {}, {}, tonumber(gpu_limit) or math.huge
  for dim, n in pairs(detected) do
    local mine = count('fc:offer:' .. boot, dim)
    for i = 1, #others do n = n - count('fc:offer:' .. others[i], dim) end
    n = math.max(0, n, mine)
    if not string.match(dim, '^gpu:') then
      offer[dim] = n
    elseif mine > 0 then
      offer[dim], room = n, room - 1
    elseif n > 0 then
      devices[dim] = n
    end
  end
  local order = cjson.decode(devices_json and devices_json ~= '' and devices_json or '[]')
  for i = 1, #order do
    local dim = 'gpu:' .. order[i].id
    if devices[dim] and room > 0 then offer[dim], room = devices[dim], room - 1 end
  end
  return offer
end

-- Detected units that no boot of the machine offers any more go to the boots that detected them too, the longest known first.
-- Offers only grow here, so that what is booked stays covered.
local function share_machine(machine)
  local boots, started = {}, {}
  local all = redis.call('ZRANGE', 'fc:boots', 0, -1)
  for i = 1, #all do
    local record = redis.call('HMGET', 'fc:boot:' .. all[i], 'machine', 'started_ms')
    if record[1] == machine then
      boots[#boots + 1] = all[i]
      started[all[i]] = tonumber(record[2]) or 0
    end
  end
  table.sort(boots, function(a, b)
    if started[a] ~= started[b] then return started[a] < started[b] end
    return a < b
  end)
  for i = 1, #boots do
    local boot, others, grown = boots[i], {}, false
    for j = 1, #boots do
      if j ~= i then others[#others + 1] = boots[j] end
    end
    local record = redis.call('HMGET', 'fc:boot:' .. boot, 'detected', 'devices', 'gpu_limit')
    for dim, n in pairs(detected_left(boot, cjson.decode(record[1] or '{}'), others, record[2], record[3])) do
      if n > count('fc:offer:' .. boot, dim) then
        set_offer(boot, dim, n)
        grown = true
      end
    end
    if grown then store_free(boot) end
  end
end
