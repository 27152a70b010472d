-- Brings a boot that was taken out of service back; one that is up already stays so.
-- uses: fc:boot:* fc:active:* fc:alloc:* fc:bucket:* fc:buckets fc:deadlines fc:events:* fc:free fc:freed fc:journals fc:limits fc:offer:* fc:pools fc:poolused fc:reserve fc:shapes fc:shares fc:step:* fc:tick fc:total fc:unit:* fc:used:* fc:weights fcq.* fc:waiting fc:waiting:* fc:repairs fc:attention:*
-- args: boot dispatch_ms
-- returns: OK | UNKNOWN | BAD_STATE state
-- include: base tokens flow room gang queue host seat reserve repair place
local boot, dispatch_ms = ARGV[1], tonumber(ARGV[2])
local key, now = 'fc:boot:' .. boot, now_ms()
local state = redis.call('HGET', key, 'state')
if not state or state == 'gone' then return { 'UNKNOWN' } end
if state == 'up' then return { 'OK' } end
if state ~= 'quarantined' then return { 'BAD_STATE', state } end
redis.call('HSET', key, 'state', 'up')
redis.call('HDEL', key, 'reason', 'quick', 'quarantined_ms', 'quarantined_for')
store_free(boot)
place(boot, 16, 0, dispatch_ms, now)
return { 'OK' }
