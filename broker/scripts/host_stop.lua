-- An attempt no longer wants a host: its guardian is told. Idempotent.
-- uses: fc:unit:* fc:alloc:* fc:attention:* fc:boot:* fc:deadlines fc:free fc:freed fc:hosts:* fc:offer:* fc:poolused fc:shares fc:unacked fc:unacked_index fc:used:* fcq.* fc:tick
-- args: unit epoch nonce bundle number
-- returns: OK state | LOST
-- include: base tokens host
local unit, epoch, nonce, bundle, number = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local host = read_host(unit, epoch, bundle, number)
if not host or not is_attempt(unit, epoch, nonce) then return { 'LOST' } end
if host.state == 'placed' then
  withdraw(host.boot, unit, epoch .. '#' .. bundle .. '.' .. number)
  end_host(unit, epoch, bundle, host, 'cancelled', {}, true, now_ms())
elseif host.state == 'running' then
  host.wanted = 'cancel'
  write_host(unit, bundle, host)
  redis.call('SADD', 'fc:attention:' .. host.boot, row_name(unit, epoch, bundle))
end
return { 'OK', host.state }
