-- Cuts rows off the head of a unit's tail that now stand on storage, up to and including the given row; harmless when repeated.
-- uses: fc:tail:* fc:leftovers
-- args: unit epoch nonce seq limit
-- returns: OK removed
local unit, epoch, nonce, seq, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local key, removed = 'fc:tail:' .. unit, 0
while removed < limit do
  local head = redis.call('LINDEX', key, 0)
  if not head then break end
  local row = cjson.decode(head)
  if row.epoch ~= epoch or row.nonce ~= nonce or row.seq > seq then break end
  redis.call('LPOP', key)
  removed = removed + 1
end
if redis.call('EXISTS', key) == 0 then redis.call('SREM', 'fc:leftovers', unit) end
return { 'OK', tostring(removed) }
