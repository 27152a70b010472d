-- Tokens: one row per unit and epoch on a boot is the truth; the sums (fc:used) and what is free (fc:free) are written only with a row.
local function store_free(boot)
  redis.call('SADD', 'fc:freed', boot)
  local record = redis.call('HMGET', 'fc:boot:' .. boot, 'accepting', 'python', 'keys', 'only', 'state')
  if not record[5] or record[5] == 'gone' then
    redis.call('HDEL', 'fc:free', boot)
    return
  end
  local used = as_map(redis.call('HGETALL', 'fc:used:' .. boot))
  local offer = redis.call('HGETALL', 'fc:offer:' .. boot)
  local free = {}
  for i = 1, #offer, 2 do free[offer[i]] = tonumber(offer[i + 1]) - (tonumber(used[offer[i]]) or 0) end
  redis.call('HSET', 'fc:free', boot, cjson.encode({
    a = (record[5] == 'up' and record[1] == '1') and 1 or 0,
    c = (record[2] or '') .. '|' .. table.concat(cjson.decode(record[3] or '[]'), ',') .. '|' .. (record[4] or ''), f = free,
  }))
end

local function book(boot, unit, epoch, vector, status, now)
  redis.call('HSET', 'fc:alloc:' .. boot, unit .. '@' .. epoch, cjson.encode({ v = vector, s = status, ms = now }))
  for dim, n in pairs(vector) do redis.call('HINCRBY', 'fc:used:' .. boot, dim, n) end
end

-- A message that a worker took is forgotten here: its worker may be killed before it acknowledges what it has done.
local function forget_message(unit, epoch)
  local tag = 'fc.' .. unit .. '.' .. epoch
  redis.call('ZREM', 'fc:unacked_index', tag)
  redis.call('HDEL', 'fc:unacked', tag)
end

-- Returns true if there was a row. The caller refreshes fc:free with store_free.
local function unbook(boot, unit, epoch)
  local row = redis.call('HGET', 'fc:alloc:' .. boot, unit .. '@' .. epoch)
  if not row then return false end
  forget_message(unit, epoch)
  redis.call('HDEL', 'fc:alloc:' .. boot, unit .. '@' .. epoch)
  for dim, n in pairs(cjson.decode(row).v) do redis.call('HINCRBY', 'fc:used:' .. boot, dim, -n) end
  return true
end

-- The device of a lost unit stays booked on its boot until that boot says that nothing of it runs any more.
local function orphan(boot, unit, epoch)
  local row = redis.call('HGET', 'fc:alloc:' .. boot, unit .. '@' .. epoch)
  if not row then return end
  local value = cjson.decode(row)
  value.s = 'orphan'
  redis.call('HSET', 'fc:alloc:' .. boot, unit .. '@' .. epoch, cjson.encode(value))
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
    local grown = false
    for dim, left in pairs(cjson.decode(redis.call('HGET', 'fc:boot:' .. boots[i], 'detected') or '{}')) do
      for j = 1, #boots do
        if j ~= i then left = left - count('fc:offer:' .. boots[j], dim) end
      end
      if left > count('fc:offer:' .. boots[i], dim) then
        redis.call('HSET', 'fc:offer:' .. boots[i], dim, left)
        grown = true
      end
    end
    if grown then store_free(boots[i]) end
  end
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
