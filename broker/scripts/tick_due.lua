-- Says that somebody watches time, and whether it brings anything now: most ticks of a large cluster bring nothing, and cost little.
-- uses: fc:tick fc:boots fc:deadlines fc:delayed fc:timeouts
-- args:
-- returns: IDLE now_ms | DUE
-- include: base
local now = now_ms()
local tick = redis.call('HMGET', 'fc:tick', 'last_ms', 'full_ms')
local function is_due(key, before)
  return #redis.call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, 1) > 0
end
local last_ms, full_ms = tonumber(tick[1]) or 0, tonumber(tick[2]) or 0
if now - last_ms > GAP_MS or now < last_ms or now - full_ms >= PASS_MS then return { 'DUE' } end
if is_due('fc:boots', now - SILENT_MS) or is_due('fc:deadlines', now) or is_due('fc:delayed', now) or is_due('fc:timeouts', now) then return { 'DUE' } end
redis.call('HSET', 'fc:tick', 'last_ms', now)
return { 'IDLE', tostring(now) }
