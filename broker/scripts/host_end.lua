-- Says that nothing of a host runs any more, and how it ended; its bundle is free again, or returned. A repeat changes nothing.
-- uses: fc:unit:* fc:active:* fc:alloc:* fc:attention:* fc:boot:* fc:bucket:* fc:buckets fc:deadlines fc:events:* fc:free fc:freed fc:hosts:* fc:journals fc:limits fc:offer:* fc:pools fc:poolused fc:reserve fc:shapes fc:shares fc:step:* fc:tick fc:total fc:unacked fc:unacked_index fc:used:* fc:weights fcq.* fc:waiting fc:waiting:* fc:repairs
-- args: unit epoch bundle number nonce boot state result_json dispatch_ms
-- returns: OK | LOST
-- include: base tokens flow room gang queue host seat reserve repair place
local unit, epoch, bundle, number, nonce, boot = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local state, result, dispatch_ms = ARGV[7], ARGV[8], tonumber(ARGV[9])
local now = now_ms()
local host = read_host(unit, epoch, bundle, number)
if host and host.nonce == nonce and host.state == 'running' then
  end_host(unit, epoch, bundle, host, state, { result = result }, true, now)
elseif host and host.nonce == nonce and host.state == state then
  return { 'OK' }
else
  -- its attempt is over, or it was given up: its row waits for this word
  local name = row_name(unit, epoch, bundle)
  local text = redis.call('HGET', 'fc:alloc:' .. boot, name)
  local row = text and cjson.decode(text)
  if not row or row.h ~= number then return { 'LOST' } end
  if row.s == 'held' then
    row.h, row.x = nil, nil
    redis.call('HSET', 'fc:alloc:' .. boot, name, cjson.encode(row))
    return { 'OK' }
  end
  unbook(boot, name)
  store_free(boot)
end
place(boot, 16, 0, dispatch_ms, now)
return { 'OK' }
