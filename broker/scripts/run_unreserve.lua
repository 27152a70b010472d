-- Gives a reservation back that led to no run; harmless when it is gone or another's.
-- uses: fc:name:*
-- args: run token
-- returns: OK
local run, token = ARGV[1], ARGV[2]
if redis.call('GET', 'fc:name:' .. run) == token then redis.call('DEL', 'fc:name:' .. run) end
return { 'OK' }
