-- Who comes first: priority, then the run with the smallest share for its weight, then submission; within a run its steps and trials as
-- they are numbered. Pending units sit in buckets of (run, step, shape), in order of fc:buckets.
local MAX_SHAPES, MAX_BUCKETS, PARTS = 512, 2048, 1e9

local function put_back(unit, run, step, index)
  local shape = redis.call('HGET', 'fc:unit:' .. unit, 'shape')
  redis.call('ZADD', 'fc:bucket:' .. run .. ':' .. step .. ':' .. shape, index, unit)
  local state = redis.call('HGET', 'fc:step:' .. run .. ':' .. step, 'state')
  if state == 'ready' or state == 'running' then open_bucket(run, step, shape) end
end

local function take_out(unit, run, step, shape)
  local bucket = run .. ':' .. step .. ':' .. shape
  redis.call('ZREM', 'fc:bucket:' .. bucket, unit)
  if redis.call('EXISTS', 'fc:bucket:' .. bucket) == 0 then unlist_bucket(bucket) end
end

-- The cluster-wide tokens that are left, less what is kept for a reservation.
local function read_pools(hold)
  local sizes, used, pools = redis.call('HGETALL', 'fc:pools'), nil, {}
  if #sizes == 0 then return pools end
  used = as_map(redis.call('HGETALL', 'fc:poolused'))
  for i = 1, #sizes, 2 do
    pools[sizes[i]] = { size = tonumber(sizes[i + 1]), free = tonumber(sizes[i + 1]) - (tonumber(used[sizes[i]]) or 0) - (hold[sizes[i]] or 0) }
  end
  return pools
end

-- A shape as placement needs it: per bundle what a boot must have (pools apart, devices as part or whole), and what a unit of it costs.
local function load_shape(text, largest, pools, totals)
  local shape = cjson.decode(text)
  shape.pools, shape.sums = {}, {}
  for i = 1, #shape.bundles do
    local bundle, want = shape.bundles[i], {}
    local need = {}
    for dim, n in pairs(bundle.need) do
      shape.sums[dim] = (shape.sums[dim] or 0) + n
      if pools[dim] then
        shape.pools[dim] = (shape.pools[dim] or 0) + n
      else
        need[dim] = n
        if dim ~= 'gpu' then want[dim] = n elseif n <= WHOLE then want['gpu.part'] = n else want['gpu.whole'] = n / WHOLE end
      end
    end
    shape.gpu = shape.gpu or need.gpu
    bundle.need, bundle.wants = need, wants_of(want, largest)
  end
  shape.wants = shape.bundles[1].wants
  local most = 0
  for dim, n in pairs(shape.sums) do
    local all = pools[dim] and pools[dim].size or tonumber(totals[dim]) or 0
    if all > 0 then most = math.max(most, n / all) end
  end
  shape.cost = math.ceil(PARTS * most)
  return shape
end

local function load_shapes(ids, room, pools)
  local shapes, keys = {}, {}
  for i = 1, #ids do
    if shapes[ids[i]] == nil then
      shapes[ids[i]] = false
      keys[#keys + 1] = ids[i]
    end
  end
  if #keys == 0 then return shapes end
  local texts, totals = redis.call('HMGET', 'fc:shapes', unpack(keys)), as_map(redis.call('HGETALL', 'fc:total'))
  for i = 1, #keys do
    if texts[i] then shapes[keys[i]] = load_shape(texts[i], room.largest, pools, totals) end
  end
  return shapes
end

-- Whether some boot in the room can hold the shape, and the pools have enough. A gang may need boots that are not in this room.
local function may_fit(shape, room, pools)
  if #shape.bundles == 1 and (not fits(shape.wants, room.largest) or not has_candidate(room, shape)) then return false end
  for pool, n in pairs(shape.pools) do
    if pools[pool].free < n then return false end
  end
  return true
end

-- A run's account, the same at every priority: its share and weight, and how many more units may run at once, of it and of its steps.
local function new_account()
  return { share = 0, weight = 1, steps = {} }
end

-- Nothing is read where nothing is limited.
local function read_limits(entries)
  if redis.call('EXISTS', 'fc:limits') == 0 then return end
  for i = 1, #entries do
    local entry, account = entries[i], entries[i].account
    local limit = not account.room and redis.call('HGET', 'fc:limits', entry.run)
    if limit then account.room = tonumber(limit) - redis.call('SCARD', 'fc:active:' .. entry.run) end
    for j = 1, #entry.buckets do
      local step = entry.buckets[j].step
      limit = not account.steps[step] and redis.call('HGET', 'fc:limits', entry.run .. ':' .. step)
      if limit then
        local key = 'fc:step:' .. entry.run .. ':' .. step
        account.steps[step] = tonumber(limit) - count(key, 'placed') - count(key, 'running')
      end
    end
  end
end

local function has_turn(entry, bucket)
  local account = entry.account
  return (account.room or 1) > 0 and (account.steps[bucket.step] or 1) > 0
end

local function note_turn(entry, bucket)
  local account = entry.account
  account.share = account.share + bucket.shape.cost
  if account.room then account.room = account.room - 1 end
  if account.steps[bucket.step] then account.steps[bucket.step] = account.steps[bucket.step] - 1 end
end

-- The shapes that pending units wait for, the most urgent first, from `cursor` on.
local function waiting_shapes(cursor)
  return redis.call('ZRANGE', 'fc:waiting', cursor, cursor + MAX_SHAPES - 1)
end

-- Names, scores and shapes of the buckets whose shape something in the room can hold, in order.
local function buckets_of(ids, shapes)
  local by_name, fitting = {}, {}
  for i = 1, #ids do
    if shapes[ids[i]] and shapes[ids[i]].may then fitting[#fitting + 1] = ids[i] end
  end
  if #fitting == 1 then return redis.call('ZRANGE', 'fc:waiting:' .. fitting[1], 0, MAX_BUCKETS - 1, 'WITHSCORES'), nil, shapes[fitting[1]] end
  if #fitting == 0 then return {} end
  for i = 1, #fitting do
    local names = redis.call('ZRANGE', 'fc:waiting:' .. fitting[i], 0, MAX_BUCKETS - 1)
    for j = 1, #names do by_name[names[j]] = shapes[fitting[i]] end
  end
  return redis.call('ZRANGE', 'fc:buckets', 0, MAX_BUCKETS - 1, 'WITHSCORES'), by_name
end

-- What waits for these shapes, by priority and run, highest first; and whether gangs are among it. A run's buckets are neighbours in the
-- order (its number stands in it); they are looked at when its turn comes.
local function read_queue(ids, room, pools)
  local shapes, levels, entries, accounts, has_gang = load_shapes(ids, room, pools), {}, {}, {}, false
  for _, shape in pairs(shapes) do
    if shape then
      shape.may = may_fit(shape, room, pools)
      has_gang = has_gang or (shape.may and #shape.bundles > 1)
    end
  end
  local flat, by_name, one = buckets_of(ids, shapes)
  local level, entry
  for i = 1, #flat, 2 do
    local shape = one or by_name[flat[i]]
    if shape then
      local order = tonumber(flat[i + 1])
      local priority = -math.floor(order / PRIORITY)
      local number = math.floor((order + priority * PRIORITY) / MAX_STEPS)
      if not level or level.priority ~= priority then
        level, entry = { priority = priority, runs = {} }, nil
        levels[#levels + 1] = level
      end
      if not entry or entry.number ~= number then
        local run = string.match(flat[i], '^[^:]+')
        accounts[run] = accounts[run] or new_account() -- one for all priorities: what is placed at one counts at the next
        entry = { run = run, number = number, order = order, account = accounts[run], flat = flat, at = {}, shapes = {} }
        level.runs[#level.runs + 1], entries[#entries + 1] = entry, entry
      end
      entry.at[#entry.at + 1] = i
      entry.shapes[#entry.shapes + 1] = shape
    end
  end
  if #entries > 0 then
    local runs = {}
    for i = 1, #entries do runs[i] = entries[i].run end
    local shares, weights = redis.call('HMGET', 'fc:shares', unpack(runs)), redis.call('HMGET', 'fc:weights', unpack(runs))
    for i = 1, #entries do
      local account = entries[i].account
      account.share, account.weight = tonumber(shares[i]) or 0, tonumber(weights[i]) or 1
    end
  end
  return levels, has_gang
end

-- The buckets of a run whose turn has come, with what limits them.
local function buckets_in(entry)
  if entry.buckets then return entry.buckets end
  entry.buckets = {}
  for i = 1, #entry.at do
    local name = entry.flat[entry.at[i]]
    local step = string.match(name, '^[^:]+:([^:]+):')
    entry.buckets[i] = { name = name, step = step, shape = entry.shapes[i], order = tonumber(entry.flat[entry.at[i] + 1]), units = {} }
  end
  read_limits({ entry })
  return entry.buckets
end

local function next_run(runs)
  local best
  for i = 1, #runs do
    local load = runs[i].account.share / runs[i].account.weight
    if not best or load < runs[best].load or (load == runs[best].load and runs[i].order < runs[best].order) then best = i end
    runs[i].load = load
  end
  return best
end

local function head_of(bucket)
  if not bucket.head then bucket.head = tonumber(redis.call('ZRANGE', 'fc:bucket:' .. bucket.name, 0, 0, 'WITHSCORES')[2]) or math.huge end
  return bucket.head
end

-- The bucket of a run whose turn it is: by step, then by the number of its first unit.
local function next_bucket(entry)
  buckets_in(entry)
  local best = 1
  for i = 2, #entry.buckets do
    local one, other = entry.buckets[i], entry.buckets[best]
    if one.order < other.order or (one.order == other.order and head_of(one) < head_of(other)) then best = i end
  end
  return best
end
