-- Renews the lease of a running unit and says what is wanted of it.
-- uses: fc:unit:* fc:run:* fc:deadlines
-- args: unit epoch nonce lease_ms note
-- returns: CONTINUE now_ms | CANCEL now_ms | LOST state
-- include: base
local unit, epoch, nonce, lease_ms, note = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local record = redis.call('HMGET', 'fc:unit:' .. unit, 'state', 'epoch', 'nonce', 'wanted')
if record[1] ~= 'running' or record[2] ~= epoch or record[3] ~= nonce then return { 'LOST', record[1] or '' } end
redis.call('ZADD', 'fc:deadlines', now + lease_ms, unit)
if note ~= '' then redis.call('HSET', 'fc:unit:' .. unit, 'reason', note) else redis.call('HDEL', 'fc:unit:' .. unit, 'reason') end
local run = split_unit(unit)
if record[4] == 'cancel' or redis.call('HGET', 'fc:run:' .. run, 'wanted') == 'cancel' then return { 'CANCEL', tostring(now) } end
return { 'CONTINUE', tostring(now) }
