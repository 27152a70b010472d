-- A boot is known to be over: it said goodbye, or its machine knows that it is dead. Everything that it held is freed and placed anew.
-- uses: fc:freed fc:tick fc:boot:* fc:boots fc:workers fc:alloc:* fc:used:* fc:offer:* fc:free fc:attention:* fc:unit:* fc:run:* fc:step:* fc:active:* fc:deadlines fc:bucket:* fc:buckets fc:tail:* fc:leftovers fc:failed:* fc:rank:* fc:attempts:* fc:shapes fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* _kombu.* fc:delayed fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:hosts:* fc:waiting fc:waiting:* fc:repairs
-- args: boot text dispatch_ms
-- returns: OK | UNKNOWN
-- include: base tokens flow room gang queue host seat reserve repair place lose
local boot, text, dispatch_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = now_ms()
local state = redis.call('HGET', 'fc:boot:' .. boot, 'state')
if not state or state == 'gone' then return { 'UNKNOWN' } end
forget_boot(boot, text, now)
place(nil, 16, 0, dispatch_ms, now)
return { 'OK' }
