-- Takes a boot out of service: nothing more is placed there; what is placed and not claimed goes back.
-- uses: fc:freed fc:tick fc:boot:* fc:alloc:* fc:used:* fc:offer:* fc:free fc:unit:* fc:run:* fc:step:* fc:active:* fc:deadlines fc:bucket:* fc:buckets fc:failed:* fc:rank:* fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* fc:delayed fc:shapes fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:attention:* fc:hosts:* fc:waiting fc:waiting:* fc:repairs
-- args: boot reason dispatch_ms
-- returns: OK | UNKNOWN
-- include: base tokens flow room gang queue host seat reserve repair place lose
local boot, reason, dispatch_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local key, now = 'fc:boot:' .. boot, now_ms()
local state = redis.call('HGET', key, 'state')
if not state or state == 'gone' then return { 'UNKNOWN' } end
redis.call('HSET', key, 'state', 'draining', 'accepting', '0')
take_back(boot, reason, now)
store_free(boot)
look_again() -- who avoids other workers may have none left but them
place(nil, 16, 0, dispatch_ms, now)
return { 'OK' }
