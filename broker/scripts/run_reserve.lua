-- Reserves a run's id for one minute; the same token may reserve again.
-- uses: fc:name:* fc:run:*
-- args: run token ttl_ms
-- returns: OK | EXISTS state | RESERVED
local run, token, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local state = redis.call('HGET', 'fc:run:' .. run, 'state')
if state then return { 'EXISTS', state } end
local holder = redis.call('GET', 'fc:name:' .. run)
if holder and holder ~= token then return { 'RESERVED' } end
redis.call('SET', 'fc:name:' .. run, token, 'PX', ttl_ms)
return { 'OK' }
