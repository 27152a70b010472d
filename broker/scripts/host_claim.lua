-- Gives a placed host to the guardian that brings this nonce; asked again with the same nonce it answers the same.
-- uses: fc:unit:* fc:alloc:* fc:deadlines fc:hosts:* fc:run:*
-- args: unit epoch bundle number nonce boot lease_ms
-- returns: OK json | STALE state
-- include: base tokens host
local unit, epoch, bundle, number, nonce, boot, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local now = now_ms()
local host = read_host(unit, epoch, bundle, number)
if not host or host.boot ~= boot or not is_attempt(unit, epoch, host.by) then return { 'STALE', host and host.state or '' } end
local again = host.state == 'running' and host.nonce == nonce
if not again and host.state ~= 'placed' then return { 'STALE', host.state } end
host.state, host.nonce, host.started_ms = 'running', nonce, host.started_ms or now
write_host(unit, bundle, host)
redis.call('ZADD', 'fc:deadlines', now + lease_ms, host_name(unit, epoch, bundle, number))
local run = split_unit(unit)
local run_record = redis.call('HMGET', 'fc:run:' .. run, 'location', 'token')
local row = cjson.decode(redis.call('HGET', 'fc:alloc:' .. boot, row_name(unit, epoch, bundle)))
return { 'OK', cjson.encode({
  by = host.by, digest = host.digest, now_ms = now, location = run_record[1], token = run_record[2], tokens = row.v,
  attempt = tonumber(redis.call('HGET', 'fc:unit:' .. unit, 'attempts')),
}) }
