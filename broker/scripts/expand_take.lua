-- Hands one step whose expansion was left by a dead client to the caller, for expand_ms.
-- uses: fc:expanding fc:step:*
-- args: expand_ms
-- returns: OK run step expanded total | NONE
-- include: base
local expand_ms, now = tonumber(ARGV[1]), now_ms()
local due = redis.call('ZRANGEBYSCORE', 'fc:expanding', '-inf', now, 'LIMIT', 0, 1)[1]
if not due then return { 'NONE' } end
if redis.call('EXISTS', 'fc:step:' .. due) == 0 then
  redis.call('ZREM', 'fc:expanding', due)
  return { 'NONE' }
end
redis.call('ZADD', 'fc:expanding', now + expand_ms, due)
local run, step = string.match(due, '^([^:]+):([^:]+)$')
return { 'OK', run, step, tostring(count('fc:step:' .. due, 'expanded')), tostring(count('fc:step:' .. due, 'total')) }
