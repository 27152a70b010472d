-- Stores one report of a running unit, with its checkpoint if one was committed; a repeat of a sequence number changes nothing.
-- uses: fc:unit:* fc:run:* fc:step:* fc:tail:* fc:rank:* fc:deadlines
-- args: unit epoch nonce seq row_json last_json iteration value checkpoint_json lease_ms
-- returns: CONTINUE | CANCEL | LOST state
-- include: base
local unit, epoch, nonce, seq, row = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local last, iteration, value, checkpoint, lease_ms = ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local key = 'fc:unit:' .. unit
local record = redis.call('HMGET', key, 'state', 'epoch', 'nonce', 'wanted', 'seq', 'best')
if record[1] ~= 'running' or record[2] ~= epoch or record[3] ~= nonce then return { 'LOST', record[1] or '' } end
local run, step = split_unit(unit)
if seq > (tonumber(record[5]) or 0) then
  redis.call('RPUSH', 'fc:tail:' .. unit, row)
  redis.call('HSET', key, 'seq', seq, 'last', last, 'iteration', iteration)
  redis.call('HINCRBY', key, 'rows', 1)
  if checkpoint ~= '' then redis.call('HSET', key, 'checkpoint', checkpoint, 'losses', 0) end
  local now_value = tonumber(value)
  if now_value and now_value == now_value and math.abs(now_value) < math.huge then
    local best, mode = tonumber(record[6]), redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'mode')
    if not best or (mode == 'max' and now_value > best) or (mode == 'min' and now_value < best) then
      redis.call('HSET', key, 'best', value, 'best_iteration', iteration, 'best_metrics', last, 'best_checkpoint', checkpoint)
      redis.call('ZADD', 'fc:rank:' .. run .. ':' .. step, value, unit)
    end
  end
end
redis.call('ZADD', 'fc:deadlines', now_ms() + lease_ms, unit)
if record[4] == 'cancel' or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then return { 'CANCEL' } end
return { 'CONTINUE' }
