-- Asks for a host on one of a running attempt's further bundles and pushes its message; the same number again changes nothing.
-- uses: fc:unit:* fc:alloc:* fc:boot:* fc:deadlines fc:hosts:* fcq.*
-- args: unit epoch nonce bundle number digest dispatch_ms
-- returns: OK | LOST state | NO_BUNDLE | REPAIRING | BUSY number | GONE
-- include: base tokens host
local unit, epoch, nonce, bundle, number, digest, dispatch_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local now = now_ms()
if not is_attempt(unit, epoch, nonce) then return { 'LOST', redis.call('HGET', 'fc:unit:' .. unit, 'state') or '' } end
local boots = cjson.decode(redis.call('HGET', 'fc:unit:' .. unit, 'gang') or '[]')
local boot = bundle > 0 and boots[bundle + 1]
if not boot then return { 'NO_BUNDLE' } end
if boot == '' then return { 'REPAIRING' } end
if read_host(unit, epoch, bundle, number) then return { 'OK' } end
local name = row_name(unit, epoch, bundle)
local text = redis.call('HGET', 'fc:alloc:' .. boot, name)
if not text then return { 'NO_BUNDLE' } end
local row = cjson.decode(text)
if row.h then return { 'BUSY', tostring(row.h) } end
local message, queue = message_of(boot, unit, epoch .. '#' .. bundle .. '.' .. number)
if not message then return { 'GONE' } end
row.h = number
redis.call('HSET', 'fc:alloc:' .. boot, name, cjson.encode(row))
write_host(unit, bundle, { n = number, epoch = tonumber(epoch), by = nonce, boot = boot, state = 'placed', digest = digest, ms = now })
redis.call('ZADD', 'fc:deadlines', now + dispatch_ms, host_name(unit, epoch, bundle, number))
redis.call('LPUSH', queue, message)
return { 'OK' }
