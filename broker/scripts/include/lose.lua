-- Taking a unit from a boot that can no longer be trusted with it.
local function record_attempt(unit, fields)
  redis.call('RPUSH', 'fc:attempts:' .. unit, cjson.encode(fields))
  redis.call('LTRIM', 'fc:attempts:' .. unit, -50, -1)
end

-- One unit less at once: who waits for a limit may find its place on any boot.
local function leave_active(unit, run, step)
  if redis.call('SREM', 'fc:active:' .. run, unit) == 0 or redis.call('EXISTS', 'fc:limits') == 0 then return end
  local limits = redis.call('HMGET', 'fc:limits', run, run .. ':' .. step)
  if limits[1] or limits[2] then look_again() end
end

local function end_unit(unit, run, step, from, to, reason, now)
  local key = 'fc:unit:' .. unit
  move(unit, run, step, from, to, now)
  redis.call('HSET', key, 'reason', reason, 'ended_ms', now)
  leave_active(unit, run, step)
  redis.call('ZREM', 'fc:deadlines', unit)
  redis.call('ZREM', 'fc:timeouts', unit)
  if to == 'failed' then redis.call('ZADD', 'fc:failed:' .. run, now, unit) end
  if to ~= 'completed' then redis.call('ZREM', 'fc:rank:' .. run .. ':' .. step, unit) end
  event(run, now, 'trial', 'unit', unit, 'from', from, 'to', to, 'reason', reason)
end

-- A step may say how long its units may be pending.
local function watch_pending(unit, run, step, since)
  local timeout = tonumber(redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'pending_timeout_ms'))
  if timeout then redis.call('ZADD', 'fc:timeouts', since + timeout, unit) end
end

-- Back to its bucket, or for delay_ms to the delayed ones. It leaves the ranking until it is claimed again: a pending unit of a step
-- that ends early counts as cancelled without a write of its own.
local function back_to_pending(unit, run, step, index, from, reason, now, delay_ms, cause_json)
  move(unit, run, step, from, 'pending', now)
  redis.call('HSET', 'fc:unit:' .. unit, 'reason', reason)
  redis.call('HDEL', 'fc:unit:' .. unit, 'nonce')
  leave_active(unit, run, step)
  redis.call('ZREM', 'fc:deadlines', unit)
  redis.call('ZREM', 'fc:rank:' .. run .. ':' .. step, unit)
  event(run, now, 'trial', 'unit', unit, 'from', from, 'to', 'pending', 'reason', reason, 'cause', cause_json or '')
  watch_pending(unit, run, step, now + (delay_ms or 0))
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
  give_back(unit, record, true)
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
    local unit, epoch, bundle = split_row(rows[i])
    local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
    if (record.boot == boot or bundle > 0) and record.epoch == epoch and record.state == 'placed' then
      undo_placement(unit, record, reason, now)
      taken = taken + 1
    end
  end
  return taken
end

-- A running unit whose guardian is gone. certain: nothing of it runs any more, its tokens return at once; else its row turns orphan.
local function lose(unit, record, kind, text, certain, now)
  local run, step, index = split_unit(unit)
  give_back(unit, record, certain)
  withdraw(record.boot, unit, record.epoch)
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
    local unit, epoch, bundle = split_row(rows[i])
    local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
    local is_its = record.epoch == epoch and (record.boot == boot or bundle > 0)
    if is_its and record.state == 'running' then
      if bundle > 0 and redis.call('HGET', 'fc:step:' .. string.match(unit, '^(.*):%d+$'), 'on_bundle_loss') == 'repair' then
        lose_bundle(unit, record, bundle, text, now)
      else
        -- a lost bundle takes its attempt with it, whose guardian may live on another boot: it is told
        lose(unit, record, 'worker_lost', text, bundle == 0, now)
        if bundle > 0 then redis.call('SADD', 'fc:attention:' .. record.boot, unit) end
      end
    elseif is_its and record.state == 'placed' then
      undo_placement(unit, record, text, now)
    end
    unbook(boot, rows[i])
  end
  local record = redis.call('HMGET', 'fc:boot:' .. boot, 'queue', 'worker', 'machine')
  if record[1] then redis.call('DEL', record[1], '_kombu.binding.' .. record[1], '_kombu.binding_permanent.' .. record[1]) end
  if record[2] and redis.call('HGET', 'fc:workers', record[2]) == boot then redis.call('HDEL', 'fc:workers', record[2]) end
  redis.call('ZREM', 'fc:boots', boot)
  redis.call('HDEL', 'fc:free', boot)
  look_again() -- who avoids other workers may have none left but them
  clear_offer(boot)
  redis.call('DEL', 'fc:alloc:' .. boot, 'fc:used:' .. boot, 'fc:attention:' .. boot)
  redis.call('HSET', 'fc:boot:' .. boot, 'state', 'gone', 'reason', text, 'gone_ms', now)
  redis.call('EXPIRE', 'fc:boot:' .. boot, 86400)
  if record[3] then share_machine(record[3]) end
end
