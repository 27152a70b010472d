-- Announces a boot with its offers, and what of it still runs; a second boot on a machine is offered what is left of the detected.
-- uses: fc:freed fc:tick fc:boot:* fc:boots fc:workers fc:offer:* fc:used:* fc:alloc:* fc:free fc:unit:* fc:run:* fc:step:* fc:shapes fc:attempts:* fc:active:* fc:deadlines fc:bucket:* fc:buckets fc:attention:* fc:tail:* fc:leftovers fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* _kombu.* fc:delayed fc:limits fc:poolused fc:shares fc:timeouts fc:total fc:weights fc:hosts:* fc:pools fc:reserve fc:waiting fc:waiting:* fc:repairs
-- args: boot fields_json detected_json declared_json running_json dispatch_ms swept
-- returns: OK offer_json | NAME_TAKEN boot
-- include: base tokens flow room gang queue host seat reserve repair place lose
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
-- Which devices it has is not known any more: none of them is given away.
local function orphaned(need, offer)
  local vector = {}
  for dim, n in pairs(need) do
    if dim ~= 'gpu' then vector[dim] = n end
  end
  for dim in pairs(offer) do
    if need.gpu and string.match(dim, '^gpu:') then vector[dim] = WHOLE end
  end
  return vector
end

local key = 'fc:boot:' .. boot
local state = redis.call('HGET', key, 'state')
local boots, others = redis.call('ZRANGE', 'fc:boots', 0, -1), {}
for i = 1, #boots do
  if boots[i] ~= boot and redis.call('HGET', 'fc:boot:' .. boots[i], 'machine') == fields.machine then others[#others + 1] = boots[i] end
end
-- a boot that is known keeps what it offers: units may be booked on it
local offer = detected_left(boot, detected, others, fields.devices, fields.gpu_limit)
for dim, n in pairs(declared) do offer[dim] = n end
redis.call('PERSIST', key)
for name, value in pairs(fields) do redis.call('HSET', key, name, value) end
redis.call('HSET', key, 'state', (state == 'draining' or state == 'quarantined') and state or 'up', 'accepting', '0', 'last_ms', now, 'detected', ARGV[3])
redis.call('HSETNX', key, 'started_ms', now)
redis.call('HDEL', key, 'reason', 'gone_ms')
redis.call('HSET', 'fc:workers', fields.worker, boot)
redis.call('ZADD', 'fc:boots', now, boot)
local known = redis.call('HKEYS', 'fc:offer:' .. boot)
for i = 1, #known do
  if not offer[known[i]] then
    set_offer(boot, known[i], 0)
    redis.call('HDEL', 'fc:offer:' .. boot, known[i])
  end
end
for dim, n in pairs(offer) do set_offer(boot, dim, n) end
for i = 1, #running do
  local unit, _, bundle = split_row(running[i])
  local shape = unit and redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  local shape_json = shape and redis.call('HGET', 'fc:shapes', shape)
  if shape_json and redis.call('HEXISTS', 'fc:alloc:' .. boot, running[i]) == 0 then
    -- what runs here and is not booked was lost to another boot or with the server's last second
    local asked = cjson.decode(shape_json).bundles[bundle + 1]
    if asked then book(boot, running[i], { v = orphaned(asked.need, offer), s = 'orphan', ms = now }) end
  end
end
store_free(boot)
return { 'OK', cjson.encode(offer) }
