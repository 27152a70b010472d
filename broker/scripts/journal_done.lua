-- A segment of the journal stands on storage: the next one starts after it; old events of the stream are cut behind it.
-- uses: fc:journal:* fc:journals fc:events:*
-- args: run owner number last_id keep_ms
-- returns: OK | LOST
-- include: base
local run, owner, number, last_id, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local key, now = 'fc:journal:' .. run, now_ms()
if redis.call('HGET', key, 'owner') ~= owner then return { 'LOST' } end
if last_id ~= '' then redis.call('HSET', key, 'number', number + 1, 'after', last_id) end
local after = redis.call('HGET', key, 'after') or '0-0'
local cut = string.format('%d-0', now - keep_ms)
if tonumber(string.match(after, '^%d+')) > now - keep_ms then
  redis.call('XTRIM', 'fc:events:' .. run, 'MINID', cut)
else
  redis.call('XTRIM', 'fc:events:' .. run, 'MINID', after)
end
local newest = redis.call('XREVRANGE', 'fc:events:' .. run, '+', '-', 'COUNT', 1)[1]
if not newest or newest[1] == after then redis.call('SREM', 'fc:journals', run) end
return { 'OK' }
