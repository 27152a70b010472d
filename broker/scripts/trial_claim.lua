-- Gives a placed unit to the guardian that brings this nonce; asked again with the same nonce it answers the same.
-- uses: fc:freed fc:tick fc:unit:* fc:run:* fc:step:* fc:boot:* fc:deadlines fc:tail:* fc:events:* fc:journals fc:active:* fc:alloc:* fc:used:* fc:free fc:buckets fc:bucket:* fc:rank:* fc:failed:* fc:unacked fc:unacked_index fcq.* fc:delayed fc:dependents:* fc:expanding fc:offer:* fc:stepshapes:* fc:limits fc:poolused fc:shares fc:timeouts fc:weights fc:attention:* fc:hosts:* fc:pools fc:reserve fc:shapes fc:total fc:waiting fc:waiting:* fc:repairs
-- args: unit epoch nonce boot lease_ms
-- returns: OK json | STALE state | NOT_FOUND | CANCELLED
-- include: base tokens flow room gang queue host seat reserve repair place lose
local unit, epoch, nonce, boot, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local key, now = 'fc:unit:' .. unit, now_ms()
local record = as_map(redis.call('HGETALL', key))
if not record.state then return { 'NOT_FOUND' } end
local run, step = split_unit(unit)
local again = record.state == 'running' and record.nonce == nonce
if record.epoch ~= epoch or record.boot ~= boot or not (again or record.state == 'placed') then return { 'STALE', record.state } end
if not again then
  if is_cancelled(run, record) then
    undo_placement(unit, record, 'cancelled', now)
    return { 'CANCELLED' }
  end
  local worker = redis.call('HGET', 'fc:boot:' .. boot, 'worker') or ''
  move(unit, run, step, 'placed', 'running', now)
  record.attempts = redis.call('HINCRBY', key, 'attempts', 1)
  redis.call('HSET', key, 'nonce', nonce, 'worker', worker, 'seq', 0, 'started_ms', now)
  redis.call('HSETNX', key, 'first_started_ms', now)
  record.started_ms = now
  if record.best then redis.call('ZADD', 'fc:rank:' .. run .. ':' .. step, record.best, unit) end
  if redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state') == 'ready' then set_step(run, step, 'running', now) end
  if redis.call('HGET', 'fc:run:' .. run, 'state') == 'submitted' then set_run(run, 'running', now) end
  event(run, now, 'trial', 'unit', unit, 'from', 'placed', 'to', 'running', 'epoch', epoch, 'boot', boot, 'worker', worker,
    'attempt', record.attempts)
end
redis.call('ZADD', 'fc:deadlines', now + lease_ms, unit)
local row = cjson.decode(redis.call('HGET', 'fc:alloc:' .. boot, row_name(unit, epoch)) or '{}')
for pool, n in pairs(row.p or {}) do row.v[pool] = n end
local bundles, boots = {}, cjson.decode(record.gang and record.gang ~= '' and record.gang or '[]')
for i = 1, #boots do
  local of_boot = redis.call('HMGET', 'fc:boot:' .. boots[i], 'worker', 'machine', 'devices')
  local part = cjson.decode(redis.call('HGET', 'fc:alloc:' .. boots[i], row_name(unit, epoch, i - 1)) or '{"v":{}}')
  bundles[i] = { worker = of_boot[1], machine = of_boot[2], devices = of_boot[3] or '[]', tokens = part.v }
end
local run_record = redis.call('HMGET', 'fc:run:' .. run, 'location', 'key_id', 'plan_digest', 'token')
return { 'OK', cjson.encode({
  attempt = tonumber(record.attempts), fails = tonumber(record.fails) or 0, losses = tonumber(record.losses) or 0, started_ms = tonumber(record.started_ms),
  now_ms = now, location = run_record[1], key_id = run_record[2], plan_digest = run_record[3], token = run_record[4], checkpoint = record.checkpoint or '',
  iteration = tonumber(record.iteration) or 0, tail = redis.call('LLEN', 'fc:tail:' .. unit), tokens = row.v, bundles = #bundles > 0 and bundles or nil,
}) }
