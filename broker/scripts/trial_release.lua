-- Says with certainty that nothing of (unit, epoch) runs on its boot any more and why; frees its tokens and decides what follows.
-- uses: fc:freed fc:tick fc:unit:* fc:run:* fc:step:* fc:boot:* fc:attempts:* fc:active:* fc:deadlines fc:alloc:* fc:used:* fc:offer:* fc:free fc:bucket:* fc:buckets fc:tail:* fc:leftovers fc:failed:* fc:rank:* fc:shapes fc:stepshapes:* fc:dependents:* fc:expanding fc:events:* fc:journals fc:unacked fc:unacked_index fcq.* fc:delayed fc:limits fc:pools fc:poolused fc:reserve fc:shares fc:timeouts fc:total fc:weights fc:attention:* fc:hosts:* fc:waiting fc:waiting:* fc:repairs
-- args: unit epoch nonce boot cause text dispatch_ms
-- returns: OK state | FREED | LOST
-- include: base tokens flow room gang queue host seat reserve repair place lose
local unit, epoch, nonce, boot, cause, text, dispatch_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local now = now_ms()
local record = as_map(redis.call('HGETALL', 'fc:unit:' .. unit))
if record.epoch == epoch and record.boot == boot and record.state == 'running' and record.nonce == nonce then
  lose(unit, record, cause, text, true, now)
elseif record.epoch == epoch and record.boot == boot and record.state == 'placed' then
  undo_placement(unit, record, text, now)
elseif record.epoch == epoch and record.boot == boot and record.state == 'running' then
  return { 'LOST' }
else
  if not unbook(boot, row_name(unit, epoch)) then return { 'LOST' } end
  store_free(boot)
  place(boot, 16, 0, dispatch_ms, now)
  return { 'FREED' }
end
place(boot, 16, 0, dispatch_ms, now)
return { 'OK', redis.call('HGET', 'fc:unit:' .. unit, 'state') }
