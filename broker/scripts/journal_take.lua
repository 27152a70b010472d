-- Gives the journal of one run with events to drain to the caller, for lease_ms, with the number of its next segment.
-- uses: fc:journals fc:journal:* fc:run:*
-- args: owner lease_ms limit
-- returns: OK run number after location | NONE
-- include: base
local owner, lease_ms, limit, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), now_ms()
local runs = redis.call('SRANDMEMBER', 'fc:journals', limit)
for i = 1, #runs do
  local key = 'fc:journal:' .. runs[i]
  local record = redis.call('HMGET', key, 'owner', 'until_ms', 'number', 'after')
  if record[1] == owner or not record[2] or tonumber(record[2]) < now then
    redis.call('HSET', key, 'owner', owner, 'until_ms', now + lease_ms)
    return { 'OK', runs[i], record[3] or '0', record[4] or '0-0', redis.call('HGET', 'fc:run:' .. runs[i], 'location') or '' }
  end
end
return { 'NONE' }
