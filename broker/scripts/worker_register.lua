-- Announces a boot with its offers, and what of it still runs; a second boot on a machine is offered what is left of the detected.
-- uses: fc:freed fc:tick fc:boot:* fc:boots fc:workers fc:offer:* fc:used:* fc:alloc:* fc:free fc:unit:* fc:run:* fc:step:* fc:shapes fc:attempts:* fc:active:* fc:deadlines fc:bucket:* fc:buckets fc:attention:* fc:tail:* fc:leftovers fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* _kombu.* fc:delayed
-- args: boot fields_json detected_json declared_json running_json dispatch_ms swept
-- returns: OK offer_json | NAME_TAKEN boot
-- include: base tokens flow place lose
local boot, fields, detected, declared = ARGV[1], cjson.decode(ARGV[2]), cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
local running, dispatch_ms, swept = cjson.decode(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local now = now_ms()
local before = redis.call('HGET', 'fc:workers', fields.worker)
if before and before ~= boot then
  local scope = redis.call('HGET', 'fc:boot:' .. before, 'scope') -- where a name's lock proves that no other start lives
  if scope == fields.scope and swept then
    forget_boot(before, 'the worker was started again', now)
  else
    return { 'NAME_TAKEN', before }
  end
end
local key = 'fc:boot:' .. boot
local state = redis.call('HGET', key, 'state')
local offer = {}
local boots = redis.call('ZRANGE', 'fc:boots', 0, -1)
for dim, n in pairs(detected) do
  for i = 1, #boots do
    if boots[i] ~= boot and redis.call('HGET', 'fc:boot:' .. boots[i], 'machine') == fields.machine then
      n = n - count('fc:offer:' .. boots[i], dim)
    end
  end
  -- a boot that is known keeps what it offers: units may be booked on it
  offer[dim] = math.max(0, n, count('fc:offer:' .. boot, dim))
end
for dim, n in pairs(declared) do offer[dim] = n end
redis.call('PERSIST', key)
for name, value in pairs(fields) do redis.call('HSET', key, name, value) end
redis.call('HSET', key, 'state', state == 'draining' and 'draining' or 'up', 'accepting', '0', 'last_ms', now, 'detected', ARGV[3])
redis.call('HSETNX', key, 'started_ms', now)
redis.call('HDEL', key, 'reason', 'gone_ms')
redis.call('HSET', 'fc:workers', fields.worker, boot)
redis.call('ZADD', 'fc:boots', now, boot)
redis.call('DEL', 'fc:offer:' .. boot)
for dim, n in pairs(offer) do redis.call('HSET', 'fc:offer:' .. boot, dim, n) end
for i = 1, #running do
  local unit, epoch = string.match(running[i], '^(.*)@(%d+)$')
  local shape = unit and redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  local shape_json = shape and redis.call('HGET', 'fc:shapes', shape)
  if shape_json and redis.call('HEXISTS', 'fc:alloc:' .. boot, running[i]) == 0 then
    -- what runs here and is not booked was lost to another boot or with the server's last second
    book(boot, unit, epoch, cjson.decode(shape_json).need, 'orphan', now)
  end
end
store_free(boot)
return { 'OK', cjson.encode(offer) }
