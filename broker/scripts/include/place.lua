-- Placement: a call costs buckets × distinct boots + placed, never pending.
local SMALL_CLUSTER = 64

-- Places at most `limit` units, on `only` alone or on every boot, looking at shapes from `cursor` on.
-- Returns how many were placed and where the next full pass goes on (0: from the start).
local function place(only, limit, cursor, dispatch_ms, now)
  local kept = read_reservation()
  local flat = rows_to_try(only, cursor)
  local ids = #flat > 0 and waiting_shapes(cursor) or {}
  local has_repairs = #flat > 0 and redis.call('EXISTS', 'fc:repairs') == 1
  if #ids == 0 and not has_repairs then
    if not only and cursor == 0 then nothing_left_undone() end
    return 0, 0
  end
  if not may('trial', 'pending', 'placed') then error('flowctl: pending units may not be placed') end
  local reserved = use_reservation(kept, only, dispatch_ms, now)
  local placed, looked = reserved.placed, reserved.placed
  if placed > 0 then
    flat, ids = rows_to_try(only, cursor), waiting_shapes(cursor)
  end
  local pools = read_pools(reserved.pools)
  local room = open_room(flat, reserved.boots)
  local levels, has_gang = read_queue(ids, room, pools)
  if has_gang and redis.call('HLEN', 'fc:free') <= (only and SMALL_CLUSTER or math.huge) then -- it may need boots that did not change
    room = open_room(redis.call('HGETALL', 'fc:free'), reserved.boots)
    levels = read_queue(ids, room, pools)
  end
  for l = 1, #levels do
    if has_repairs then repair(room, pools, levels[l].priority, now) end
    local runs, touched = levels[l].runs, {}
    while #runs > 0 and looked < limit do
      local r = next_run(runs)
      local entry = runs[r]
      local b = next_bucket(entry)
      local bucket = entry.buckets[b]
      local seen, more = place_next(bucket, entry, room, pools, now)
      looked = looked + seen
      if seen > 0 or bucket.aside then touched[bucket] = entry.run end
      if not more then
        table.remove(entry.buckets, b)
        if #entry.buckets == 0 then table.remove(runs, r) end
      end
    end
    for bucket, run in pairs(touched) do
      placed = placed + #bucket.units
      close_bucket(bucket, run, dispatch_ms, now)
    end
    if looked >= limit then break end
  end
  if has_repairs then repair(room, pools, nil, now) end
  close_room(room)
  if looked >= limit then return placed, 0 end
  if #ids == MAX_SHAPES then return placed, cursor + MAX_SHAPES end
  if not only and cursor == 0 then nothing_left_undone() end
  return placed, 0
end

-- After a unit ended: its boot is tried; what waited for a limit or a pool may find its place elsewhere.
local function place_after(boot, run, step, limit, dispatch_ms, now)
  local placed = place(boot, limit, 0, dispatch_ms, now)
  if placed > 0 then return end
  if redis.call('EXISTS', 'fc:pools') == 1 or redis.call('HEXISTS', 'fc:limits', run) == 1 or redis.call('HEXISTS', 'fc:limits', run .. ':' .. step) == 1 then
    look_again()
    place(nil, limit, 0, dispatch_ms, now)
  end
end
