-- Gangs: where the bundles of a placement group go, all or none. Machines count for the strategies, not workers.
local MAX_TRIES = 400

-- Boots as a gang sees them: each with its machine; rooms are copied when first taken from.
local function seats_of(room, shape, run)
  local seats = {}
  for i = 1, #room.all do
    local group = room.all[i]
    local class = class_of(room.classes, group.c)
    if takes_run(class, run) and class.python == shape.python and class.keys[shape.key] then
      for at = 1, #group.boots do
        local boot = group.boots[at]
        room.machines = room.machines or {}
        room.machines[boot] = room.machines[boot] or redis.call('HGET', 'fc:boot:' .. boot, 'machine') or boot
        seats[#seats + 1] = { boot = boot, machine = room.machines[boot], group = group, class = class }
      end
    end
  end
  return seats
end

local function can_sit(room, seat, bundle)
  return bundle.serve[seat.class] and fits(bundle.wants, room.f)
end

local function sit(plan, seat, bundle, at)
  local before = plan.rooms[seat.boot] or seat.group
  if not can_sit(before, seat, bundle) then return nil end
  local f, d = copy_room(before)
  local vector = take(f, d, bundle.need, at)
  return { f = f, d = d }, vector
end

-- The devices that a bundle's share may come from: of those that are equally full one, the fullest first. Else it has no choice.
local function choices_of(room, need)
  if not need.gpu or need.gpu > WHOLE then return { false } end
  local found, seen = {}, {}
  for i = 1, #room.d do
    local free = room.d[i][2]
    if free >= need.gpu and not seen[free] then
      seen[free] = true
      found[#found + 1] = i
    end
  end
  table.sort(found, function(a, b) return room.d[a][2] < room.d[b][2] end)
  return found
end

-- Tries to seat bundles order[k…] on the given seats, going back at most MAX_TRIES times.
local function seat_all(plan, seats, order, k)
  if k > #order then return true end
  local i, seen = order[k], {}
  for s = 1, #seats do
    local seat = seats[s]
    local before = plan.rooms[seat.boot]
    local twin = not before and seat.group or before
    if not seen[twin] then -- an equal boot that is untouched would fail in the same way
      seen[twin] = true
      local choices = can_sit(twin, seat, plan.bundles[i]) and choices_of(twin, plan.bundles[i].need) or {}
      for c = 1, #choices do
        local after, vector = sit(plan, seat, plan.bundles[i], choices[c] or nil)
        plan.rooms[seat.boot], plan.parts[i] = after, { boot = seat.boot, group = seat.group, v = vector, machine = seat.machine }
        if seat_all(plan, seats, order, k + 1) then return true end
        plan.rooms[seat.boot], plan.parts[i] = before, nil
        plan.tries = plan.tries + 1
        if plan.tries > MAX_TRIES then return false end
      end
    end
  end
  return false
end

local function new_plan(shape)
  return { rooms = {}, parts = {}, tries = 0, bundles = shape.bundles }
end

local function by_machine(seats)
  local names, machines = {}, {}
  for i = 1, #seats do
    local name = seats[i].machine
    if not machines[name] then
      machines[name] = {}
      names[#names + 1] = name
    end
    machines[name][#machines[name] + 1] = seats[i]
  end
  table.sort(names)
  return names, machines
end

-- How many bundles of `order` a machine can seat, first fit; they are left seated in the plan.
local function fill_machine(plan, seats, order)
  local left = {}
  for k = 1, #order do
    local i, seated = order[k], false
    for s = 1, #seats do
      local after, vector = sit(plan, seats[s], plan.bundles[i])
      if after then
        plan.rooms[seats[s].boot], plan.parts[i] = after, { boot = seats[s].boot, group = seats[s].group, v = vector, machine = seats[s].machine }
        seated = true
        break
      end
    end
    if not seated then left[#left + 1] = i end
  end
  return left
end

local function pack_on_one(shape, order, names, machines)
  for m = 1, #names do
    local plan = new_plan(shape)
    if seat_all(plan, machines[names[m]], order, 1) then return plan end
  end
end

-- The machine that takes most of what is left, again and again; if that fails, any seating at all.
local function pack_on_few(shape, seats, order, names, machines)
  local plan, left, open = new_plan(shape), order, {}
  for m = 1, #names do open[m] = names[m] end
  while #left > 0 and #open > 0 do
    local best, best_left, best_at
    for m = 1, #open do
      local try = new_plan(shape)
      local rest = fill_machine(try, machines[open[m]], left)
      if not best_left or #rest < #best_left then best, best_left, best_at = try, rest, m end
    end
    if #best_left == #left then break end
    for boot, own in pairs(best.rooms) do plan.rooms[boot] = own end
    for i, part in pairs(best.parts) do plan.parts[i] = part end
    left = best_left
    table.remove(open, best_at)
  end
  if #left == 0 then return plan end
  plan = new_plan(shape)
  if seat_all(plan, seats, order, 1) then return plan end
end

-- Each bundle on a machine of its own: augmenting paths, so that a first choice never stands in the way.
local function spread_strictly(shape, order, names, machines)
  local holder = {} -- machine → bundle
  if #order > #names then return nil end
  local function try(i, tried)
    for m = 1, #names do
      local name = names[m]
      if not tried[name] then
        local able = false
        for s = 1, #machines[name] do
          if can_sit(machines[name][s].group, machines[name][s], shape.bundles[i]) then able = true break end
        end
        if able then
          tried[name] = true
          if not holder[name] or try(holder[name], tried) then
            holder[name] = i
            return true
          end
        end
      end
    end
    return false
  end
  for k = 1, #order do
    if not try(order[k], {}) then return nil end
  end
  local plan = new_plan(shape)
  for name, i in pairs(holder) do fill_machine(plan, machines[name], { i }) end
  return plan
end

-- Each bundle where fewest of the gang are, as far as that goes.
local function spread_softly(shape, order, names, machines)
  local plan, counts = new_plan(shape), {}
  for k = 1, #order do
    local by_count = {}
    for m = 1, #names do by_count[m] = names[m] end
    table.sort(by_count, function(a, b)
      local left, right = counts[a] or 0, counts[b] or 0
      if left ~= right then return left < right end
      return a < b
    end)
    local seated = false
    for m = 1, #by_count do
      if #fill_machine(plan, machines[by_count[m]], { order[k] }) == 0 then
        counts[by_count[m]] = (counts[by_count[m]] or 0) + 1
        seated = true
        break
      end
    end
    if not seated then return nil end
  end
  return plan
end

-- A plan with one part per bundle, { boot, v, group }, or nil: the gang does not fit this room.
local function seat_gang(room, shape, run)
  local order, size = {}, {}
  for i = 1, #shape.bundles do
    local bundle = shape.bundles[i]
    local most = 0
    for j = 1, #bundle.wants, 2 do
      local largest = room.largest[bundle.wants[j]] or 0
      if bundle.wants[j + 1] > largest then return nil end
      if largest > 0 then most = math.max(most, bundle.wants[j + 1] / largest) end
    end
    order[i], size[i] = i, most
    bundle.serve = {}
  end
  table.sort(order, function(a, b)
    if size[a] ~= size[b] then return size[a] > size[b] end
    return a < b
  end)
  local seats = seats_of(room, shape, run)
  for s = 1, #seats do
    for i = 1, #shape.bundles do shape.bundles[i].serve[seats[s].class] = serves(seats[s].class, shape, shape.bundles[i]) end
  end
  local names, machines = by_machine(seats)
  if shape.strategy == 'STRICT_PACK' then return pack_on_one(shape, order, names, machines) end
  if shape.strategy == 'STRICT_SPREAD' then return spread_strictly(shape, order, names, machines) end
  if shape.strategy == 'SPREAD' then
    local plan = spread_strictly(shape, order, names, machines) or spread_softly(shape, order, names, machines)
    if plan then return plan end
  end
  return pack_on_one(shape, order, names, machines) or pack_on_few(shape, seats, order, names, machines)
end

-- Takes a seated gang out of the room: every boot of it begins a group of its own.
local function take_gang(room, plan)
  local vectors, groups = {}, {}
  for i = 1, #plan.bundles do
    local part = plan.parts[i]
    groups[part.boot] = part.group
    vectors[part.boot] = vectors[part.boot] or {}
    for dim, n in pairs(part.v) do vectors[part.boot][dim] = (vectors[part.boot][dim] or 0) + n end
  end
  for boot, vector in pairs(vectors) do
    for at = 1, #groups[boot].boots do
      if groups[boot].boots[at] == boot then
        move_boot(room, groups[boot], at, plan.rooms[boot].f, plan.rooms[boot].d, vector)
        break
      end
    end
  end
end
