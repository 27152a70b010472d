-- Renews the lease of a running host and says what is wanted of it.
-- uses: fc:unit:* fc:deadlines fc:hosts:*
-- args: unit epoch bundle number nonce lease_ms
-- returns: CONTINUE | CANCEL | LOST
-- include: base tokens host
local unit, epoch, bundle, number, nonce, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local host = read_host(unit, epoch, bundle, number)
if not host or host.state ~= 'running' or host.nonce ~= nonce or not is_attempt(unit, epoch, host.by) then return { 'LOST' } end
redis.call('ZADD', 'fc:deadlines', now_ms() + lease_ms, host_name(unit, epoch, bundle, number))
if host.wanted == 'cancel' then return { 'CANCEL' } end
return { 'CONTINUE' }
