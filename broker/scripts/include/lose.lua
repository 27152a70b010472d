-- Taking a unit from a boot that can no longer be trusted with it.
local function record_attempt(unit, fields)
  redis.call('RPUSH', 'fc:attempts:' .. unit, cjson.encode(fields))
  redis.call('LTRIM', 'fc:attempts:' .. unit, -50, -1)
end

local function end_unit(unit, run, step, from, to, reason, now)
  local key = 'fc:unit:' .. unit
  move(unit, run, step, from, to, now)
  redis.call('HSET', key, 'reason', reason, 'ended_ms', now)
  redis.call('SREM', 'fc:active:' .. run, unit)
  redis.call('ZREM', 'fc:deadlines', unit)
  if to == 'failed' then redis.call('ZADD', 'fc:failed:' .. run, now, unit) end
  if to ~= 'completed' then redis.call('ZREM', 'fc:rank:' .. run .. ':' .. step, unit) end
  event(run, now, 'trial', 'unit', unit, 'from', from, 'to', to, 'reason', reason)
end

-- Back to its bucket, or for delay_ms to the delayed ones. It leaves the ranking until it is claimed again: a pending unit of a step
-- that ends early counts as cancelled without a write of its own.
local function back_to_pending(unit, run, step, index, from, reason, now, delay_ms, cause_json)
  move(unit, run, step, from, 'pending', now)
  redis.call('HSET', 'fc:unit:' .. unit, 'reason', reason)
  redis.call('HDEL', 'fc:unit:' .. unit, 'nonce')
  redis.call('SREM', 'fc:active:' .. run, unit)
  redis.call('ZREM', 'fc:deadlines', unit)
  redis.call('ZREM', 'fc:rank:' .. run .. ':' .. step, unit)
  event(run, now, 'trial', 'unit', unit, 'from', from, 'to', 'pending', 'reason', reason, 'cause', cause_json or '')
  if delay_ms and delay_ms > 0 then
    redis.call('HSET', 'fc:unit:' .. unit, 'not_before_ms', now + delay_ms)
    redis.call('ZADD', 'fc:delayed', now + delay_ms, unit)
  else
    put_back(unit, run, step, index)
  end
end

local function is_cancelled(run, record)
  return record.wanted == 'cancel' or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel'
end

-- Rows that only the server has yet: whoever runs the unit next, or any worker after its end, writes them to storage.
local function leave_rows(unit)
  if redis.call('EXISTS', 'fc:tail:' .. unit) == 1 then redis.call('SADD', 'fc:leftovers', unit) end
end

-- Counts one loss of a worker or guardian (design: D9). Returns whether the budget is spent, and the reason of the end that follows.
local function count_loss(unit, run, step)
  local key = 'fc:unit:' .. unit
  local limits = redis.call('HMGET', 'fc:step:' .. run .. ':' .. step, 'max_failures', 'max_worker_losses')
  local field, limit, reason = 'losses', limits[2], 'lost too often'
  if limits[2] == 'none' then field, limit, reason = 'fails', limits[1], 'error' end
  local counted = redis.call('HINCRBY', key, field, 1)
  return tonumber(limit) >= 0 and counted > tonumber(limit), reason
end

-- A placed unit that nobody claimed: its message is withdrawn, its tokens return, nothing is counted.
local function undo_placement(unit, record, reason, now)
  local run, step, index = split_unit(unit)
  withdraw(record.boot, unit, record.epoch)
  unbook(record.boot, unit, record.epoch)
  store_free(record.boot)
  if is_cancelled(run, record) then
    end_unit(unit, run, step, 'placed', 'cancelled', 'cancelled', now)
    check_step(run, step, now)
  else
    back_to_pending(unit, run, step, index, 'placed', reason, now)
  end
end

-- Everything that is placed on a boot and that nobody claimed yet; returns how many units went back.
local function take_back(boot, reason, now)
  local rows, taken = redis.call('HKEYS', 'fc:alloc:' .. boot), 0
  table.sort(rows)
  for i = 1, #rows do
    local unit, epoch = string.match(rows[i], '^(.*)@(%d+)$')
    local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
    if record.boot == boot and record.epoch == epoch and record.state == 'placed' then
      undo_placement(unit, record, reason, now)
      taken = taken + 1
    end
  end
  return taken
end

-- A running unit whose guardian is gone. certain: nothing of it runs any more, its tokens return at once; else its row turns orphan.
local function lose(unit, record, kind, text, certain, now)
  local run, step, index = split_unit(unit)
  if certain then
    unbook(record.boot, unit, record.epoch)
  else
    orphan(record.boot, unit, record.epoch)
  end
  withdraw(record.boot, unit, record.epoch)
  store_free(record.boot)
  local worker = redis.call('HGET', 'fc:boot:' .. record.boot, 'worker') or record.worker or ''
  local cause = { kind = kind, text = text }
  record_attempt(unit, {
    attempt = tonumber(record.attempts), epoch = tonumber(record.epoch), nonce = record.nonce, boot = record.boot,
    worker = worker, started_ms = tonumber(record.started_ms), ended_ms = now, outcome = 'lost', cause = cause,
  })
  local is_over, reason = count_loss(unit, run, step)
  leave_rows(unit)
  if is_cancelled(run, record) then
    end_unit(unit, run, step, 'running', 'cancelled', 'cancelled', now)
    check_step(run, step, now)
  elseif is_over then
    redis.call('HSET', 'fc:unit:' .. unit, 'cause', cjson.encode(cause))
    end_unit(unit, run, step, 'running', 'failed', reason, now)
    check_step(run, step, now)
  else
    back_to_pending(unit, run, step, index, 'running', text, now)
  end
end

-- Everything that a boot held is freed: it is known to be dead, or has said goodbye, or has been silent for too long.
local function forget_boot(boot, text, now)
  local rows = redis.call('HKEYS', 'fc:alloc:' .. boot)
  table.sort(rows)
  for i = 1, #rows do
    local unit, epoch = string.match(rows[i], '^(.*)@(%d+)$')
    local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
    if record.boot == boot and record.epoch == epoch and record.state == 'running' then
      lose(unit, record, 'worker_lost', text, true, now)
    elseif record.boot == boot and record.epoch == epoch and record.state == 'placed' then
      undo_placement(unit, record, text, now)
    else
      unbook(boot, unit, epoch)
    end
  end
  local record = redis.call('HMGET', 'fc:boot:' .. boot, 'queue', 'worker', 'machine')
  if record[1] then redis.call('DEL', record[1], '_kombu.binding.' .. record[1], '_kombu.binding_permanent.' .. record[1]) end
  if record[2] and redis.call('HGET', 'fc:workers', record[2]) == boot then redis.call('HDEL', 'fc:workers', record[2]) end
  redis.call('ZREM', 'fc:boots', boot)
  redis.call('HDEL', 'fc:free', boot)
  redis.call('DEL', 'fc:alloc:' .. boot, 'fc:used:' .. boot, 'fc:offer:' .. boot, 'fc:attention:' .. boot)
  redis.call('HSET', 'fc:boot:' .. boot, 'state', 'gone', 'reason', text, 'gone_ms', now)
  redis.call('EXPIRE', 'fc:boot:' .. boot, 86400)
  if record[3] then share_machine(record[3]) end
end
