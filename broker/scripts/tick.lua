-- What time brings: silent boots, missed dispatches, expired leases, delays that are over, and once per second in the cluster a full pass.
-- uses: fc:freed fc:tick fc:boots fc:boot:* fc:deadlines fc:delayed fc:unit:* fc:run:* fc:step:* fc:alloc:* fc:used:* fc:offer:* fc:free fc:attempts:* fc:active:* fc:bucket:* fc:buckets fc:shapes fc:stepshapes:* fc:dependents:* fc:tail:* fc:leftovers fc:failed:* fc:rank:* fc:expanding fc:attention:* fc:workers fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* _kombu.* fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:hosts:* fc:waiting fc:waiting:* fc:repairs
-- args: lease_ms dispatch_ms boot_gone_ms reserve_ms limit
-- returns: OK json
-- include: base tokens flow room gang queue host seat reserve repair place lose
local lease_ms, dispatch_ms, boot_gone_ms, reserve_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()
local tick = as_map(redis.call('HGETALL', 'fc:tick'))
local last_ms, grace_ms, full_ms = tonumber(tick.last_ms) or now, tonumber(tick.grace_ms) or 0, tonumber(tick.full_ms) or 0
if now - last_ms > GAP_MS then grace_ms = now + lease_ms end
redis.call('HSET', 'fc:tick', 'last_ms', now, 'grace_ms', grace_ms)
local reply = { now_ms = now, lost = 0, missed = 0, placed = 0, grace = now < grace_ms }

-- Nothing is placed on a boot that was not heard of, or that lost a lease, until a beat says what still runs there; what is placed there
-- and not claimed does not wait for its deadline.
local function suspect(boot)
  if redis.call('HGET', 'fc:boot:' .. boot, 'suspect') == '1' then return 0 end
  if redis.call('EXISTS', 'fc:boot:' .. boot) == 1 then redis.call('HSET', 'fc:boot:' .. boot, 'suspect', '1', 'accepting', '0') end
  store_free(boot)
  look_again() -- who avoids other workers may have none left but them
  if not reply.grace then reply.missed = reply.missed + take_back(boot, 'nothing is heard of its worker', now) end
  return 1
end

local silent, acted = redis.call('ZRANGEBYSCORE', 'fc:boots', '-inf', now - SILENT_MS, 'WITHSCORES'), 0
for i = 1, #silent, 2 do
  local boot = silent[i]
  if now - tonumber(silent[i + 1]) > boot_gone_ms and not reply.grace then
    forget_boot(boot, 'nothing was heard of worker ' .. (redis.call('HGET', 'fc:boot:' .. boot, 'worker') or boot), now)
    acted = acted + 1
  else
    acted = acted + suspect(boot)
  end
  if acted >= limit then break end
end

local due = redis.call('ZRANGEBYSCORE', 'fc:deadlines', '-inf', now, 'LIMIT', 0, limit)
for i = 1, #due do
  local unit = due[i]
  local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
  if record.state == 'placed' then
    reply.missed = reply.missed + 1
    if redis.call('EXISTS', 'fc:boot:' .. record.boot) == 1 then redis.call('HINCRBY', 'fc:boot:' .. record.boot, 'strikes', 1) end
    undo_placement(unit, record, 'worker did not take it in time', now)
  elseif record.state == 'running' then
    if not reply.grace then
      reply.lost = reply.lost + 1
      local worker = redis.call('HGET', 'fc:boot:' .. record.boot, 'worker') or record.boot
      lose(unit, record, 'worker_lost', 'lost contact with ' .. worker, false, now)
      suspect(record.boot)
    end
  elseif not split_host(unit) then
    redis.call('ZREM', 'fc:deadlines', unit)
  elseif not reply.grace then
    local boot = lose_host(unit, now)
    if boot then suspect(boot) end
  end
end

local ready = redis.call('ZRANGEBYSCORE', 'fc:delayed', '-inf', now, 'LIMIT', 0, limit)
for i = 1, #ready do
  local run, step, index = split_unit(ready[i])
  redis.call('ZREM', 'fc:delayed', ready[i])
  local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
  local cancelled = redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel'
  if state and not ENDED[state] and not cancelled and redis.call('HGET', 'fc:unit:' .. ready[i], 'state') == 'pending' then
    redis.call('HDEL', 'fc:unit:' .. ready[i], 'not_before_ms')
    put_back(ready[i], run, step, index)
  end
end

-- Those that waited as long as their step allows: since they are pending, and their step may run.
local over = redis.call('ZRANGEBYSCORE', 'fc:timeouts', '-inf', now, 'LIMIT', 0, limit)
for i = 1, #over do
  local unit = over[i]
  local run, step, index = split_unit(unit)
  local record = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'since_ms', 'shape', 'not_before_ms')
  local of_step = redis.call('HMGET', 'fc:step:' .. run .. ':' .. step, 'state', 'ready_ms', 'pending_timeout_ms')
  local timeout = tonumber(of_step[3])
  if record[1] ~= 'pending' or not timeout or ENDED[of_step[1]] or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then
    redis.call('ZREM', 'fc:timeouts', unit)
  elseif not of_step[2] then
    redis.call('ZADD', 'fc:timeouts', now + timeout, unit)
  else
    local since = math.max(tonumber(record[2]), tonumber(of_step[2]), tonumber(record[4]) or 0)
    if now - since < timeout then
      redis.call('ZADD', 'fc:timeouts', since + timeout, unit)
    else
      take_out(unit, run, step, record[3])
      redis.call('ZREM', 'fc:delayed', unit)
      redis.call('HSET', 'fc:unit:' .. unit, 'cause', cjson.encode({ kind = 'infeasible', text = 'was pending for ' .. timeout / 1000 .. ' s' }))
      end_unit(unit, run, step, 'pending', 'failed', 'infeasible', now)
      check_step(run, step, now)
    end
  end
end

if now - full_ms >= PASS_MS or reply.lost + reply.missed + #ready > 0 then
  local placed, cursor = place(nil, limit, tonumber(tick.cursor) or 0, dispatch_ms, now)
  redis.call('HSET', 'fc:tick', 'full_ms', now, 'cursor', cursor)
  if now - (tonumber(tick.reserve_ms) or 0) >= reserve_ms / 10 then
    redis.call('HSET', 'fc:tick', 'reserve_ms', now)
    reserve(now, reserve_ms)
  end
  reply.placed = placed
end
return { 'OK', cjson.encode(reply) }
