-- Says how many tokens of a cluster-wide pool there are; empty: there is no such pool any more. What is in use above it drains.
-- uses: fc:pools fc:active:* fc:alloc:* fc:boot:* fc:bucket:* fc:buckets fc:deadlines fc:events:* fc:free fc:freed fc:journals fc:limits fc:offer:* fc:poolused fc:reserve fc:shapes fc:shares fc:step:* fc:tick fc:total fc:unit:* fc:used:* fc:weights fcq.* fc:waiting fc:waiting:* fc:repairs fc:attention:*
-- args: pool units dispatch_ms
-- returns: OK used
-- include: base tokens flow room gang queue host seat reserve repair place
local pool, units, dispatch_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if units == '' then redis.call('HDEL', 'fc:pools', pool) else redis.call('HSET', 'fc:pools', pool, units) end
look_again()
place(nil, 50, 0, dispatch_ms, now_ms())
return { 'OK', redis.call('HGET', 'fc:poolused', pool) or '0' }
