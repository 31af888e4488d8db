-- Values of keys that other parameters have charged. Such a value has a state for each set of parameters that charged
-- it. The one that was charged last comes first. A charge is debited to the others, its kin, as far as units remain
-- there. Parameters without a state read the others, and begin one with their first charge. The reply contains the value
-- as it was.

-- part: read
-- Before all instants.
local before_all = -9007199254740992

-- Products from 2^53 on are not exact.
local function exact(one, other)
  return one * other < 9007199254740992
end

-- A state behind its header, and what it counts now; nothing if it makes no sense.
local function state_of(value, flag)
  local kind = kinds[sub(value, 1, 1)]
  if not kind or #value < kind.header or sub(value, kind.header, kind.header) ~= flag then return nil end
  local state = {unpack(kind.format, value, 3)}
  state.kind, state.value, state.at, state[4] = kind, value, kind.header + 1, sub(value, 2, 2)
  if misfit(kind.size, #value - kind.header, state[3]) then return nil end
  state.capacity = kind.look(false, 1, now, state[1], state[2], state[3], state[4])
  state.left, state.in_use = kind.look(value, state.at, now, state[1], state[2], state[3], state[4])
  state.since, state.cut = before_all, before_all
  return state
end

-- The states of a value; nothing if it makes no sense.
local function states_of(value)
  local alone = state_of(value, '0')
  if alone then return {alone} end
  local count = #value > 0 and unpack('<B', value, #value) or 0
  local from, trailer = 1, #value - 24 * (count + 1)
  if count < 1 or count > @most@ or trailer < 1 then return nil end
  local states = {}
  for n = 1, count + 1 do
    local length, since, cut = unpack('<ddd', value, trailer + 24 * (n - 1))
    if not (length >= 1 and from + length <= trailer) then return nil end
    local state = state_of(sub(value, from, from + length - 1), n == 1 and '1' or '0')
    if not state or #state.value ~= length then return nil end
    states[n], state.since, state.cut, from = state, since, cut, from + length
  end
  return from == trailer and states or nil
end

-- Units that count as used under other parameters, where a state counts this many.
local function converted(rule, counted, capacity, before)
  if counted <= 0 or rule == 'reset' then return 0 end
  if rule == 'keep' then return min(counted, capacity) end
  return exact(capacity, before) and ceil(counted * capacity / before) or capacity
end

foreign = function(cell, i)
  local header, p, states = cell.header, parameters[i], states_of(cell.value)
  if not states then
    cell.flag = 'W'
    return
  end
  cell.told, cell.states, cell.value = cell.value, states, false
  cell.capacity = looks[i](false, 1, now, p[1], p[2], p[3], p[4])
  local used = 0
  cell.cut = before_all
  for place = 1, #states do
    local state = states[place]
    local counted = state.capacity - max(0, state.left)
    if sub(state.value, 1, #header - 1) == sub(header, 1, -2) then cell.own = place end
    if state.in_use then cell.in_use = true end
    if counted > cell.capacity then cell.cut = now end
    used = max(used, converted(rules[i], counted, cell.capacity, state.capacity))
  end
  if cell.own then
    cell.value, cell.cut = header .. sub(states[cell.own].value, #header + 1), states[cell.own].cut
  elseif used > 0 then
    cell.value = header .. tries[i](false, 1, now, used, p[1], p[2], p[3], p[4])
  end
end

-- Forgets the states that hold least, where they are too many. The first one stays, and that at one more place.
local function evict(states, kept)
  while #states > @most@ + 1 do
    local least
    for place = #states, 2, -1 do
      if place ~= kept and not (least and states[place].capacity >= states[least].capacity) then least = place end
    end
    if kept > least then kept = kept - 1 end
    for place = least, #states do states[place] = states[place + 1] end
  end
end

-- The value of some states, and the instant at which all of them are as good as unused.
local function value_of(states)
  local parts, trailer, latest_fresh = {}, {}, nil
  for place = 1, #states do
    local state = states[place]
    local fresh = state.fresh or state.kind.fresh(state.value, state.at, state[1], state[2], state[3], state[4])
    local flag = place == 1 and #states > 1 and '1' or '0'
    parts[place] = sub(state.value, 1, state.at - 2) .. flag .. sub(state.value, state.at)
    trailer[place] = pack('<ddd', #state.value, state.since, state.cut)
    latest_fresh = max(latest_fresh or fresh, fresh)
  end
  if #states == 1 then return parts[1], latest_fresh end
  return concat(parts) .. concat(trailer) .. pack('<B', #states - 1), latest_fresh
end

-- part: charge
-- µs in which a state of which all is used at an instant becomes as good as unused again.
local function recovers_in(state, instant)
  local _, fresh = state.kind.try(false, 1, instant, state.capacity, state[1], state[2], state[3], state[4])
  return fresh - instant
end

local function is_forgotten(state, capacity)
  return state.since > before_all and (state.capacity <= capacity or not state.in_use)
    and now - state.since >= recovers_in(state, state.since)
end

local function debit(state, cost)
  local kind, payload, fresh = state.kind, nil, nil
  if cost > state.left then state.cut = now end
  if cost > state.left and kind.fill then
    payload, fresh = kind.fill(state.value, state.at, now, state[1], state[2], state[3])
  elseif state.left > 0 then
    local units = min(cost, state.left)
    payload, fresh = kind.try(state.value, state.at, now, units, state[1], state[2], state[3], state[4])
  end
  if payload then state.value, state.fresh = sub(state.value, 1, state.at - 1) .. payload, fresh end
end

local function state_under(cell, i, payload, fresh)
  local header, p = cell.header, parameters[i]
  local state = {p[1], p[2], p[3], p[4], kind = kinds[sub(header, 1, 1)], value = header .. payload, at = cell.at}
  state.capacity, state.since, state.cut, state.fresh = cell.capacity, now, cell.cut, fresh
  return state
end

-- What the value is after a charge.
local function charged(cell, i, payload, fresh, cost)
  local states = {state_under(cell, i, payload, fresh)}
  if rules[i] == 'keep' and cell.in_use then
    for place = 1, #cell.states do
      local state = cell.states[place]
      if place ~= cell.own and not is_forgotten(state, cell.capacity) then
        if state.since == before_all then state.since = now end
        debit(state, cost)
        states[#states + 1] = state
      end
    end
  end
  evict(states, 1)
  return value_of(states)
end

-- What the value is after a refusal by parameters without a state: unchanged, unless the other states would lock the key
-- out for longer than its own limit, all used up, takes to recover. Then its own state begins now.
local function refused(cell, i, cost)
  local p, states = parameters[i], cell.states
  if cell.own or rules[i] ~= 'keep' or cost > cell.capacity then return nil end
  -- What is not delayed is admitted only when nothing is used.
  if sub(cell.header, 1, 2) == 'q1' then cost = cell.capacity end
  local _, recovered = tries[i](false, 1, now, cell.capacity, p[1], p[2], p[3], p[4])
  local locked = false
  for place = 1, #states do
    local state = states[place]
    local left = state.kind.look(state.value, state.at, recovered, state[1], state[2], state[3], state[4])
    locked = locked or state.capacity - left > cell.capacity - cost
  end
  if not locked then return nil end
  local all = {}
  for place = 1, #states do all[place] = states[place] end
  all[#all + 1] = state_under(cell, i, sub(cell.value, cell.at))
  evict(all, #all)
  return value_of(all)
end

-- part: settle
-- Settles a charge in all states of a key. Returns its value and when it is as good as unused; nothing if it stays.
local function settled(cell, i, mark, part, cost, actual)
  local p, states, own = parameters[i], cell.states, cell.own
  local function settle_own(value)
    if not value and actual <= cost then return nil end
    return settles[i](value, cell.at, now, mark, part, cost, actual, p[1], p[2], p[3], p[4])
  end
  if not cell.in_use then
    -- The key is as good as unused, so which parameters wrote its states does not matter.
    local payload, fresh = settle_own(cell.value)
    local value = payload and cell.header .. payload
    local _, in_use = looks[i](value or false, cell.at, now, p[1], p[2], p[3], p[4])
    if in_use then return value, fresh end
    return nil
  end
  local over, rule, from, changed = overs[i], rules[i], mark, false
  if sub(cell.header, 1, 1) == 's' then from = mark * p[2] end
  local is_over = over and over(now, mark, p[1], p[2], p[3], p[4])
  for place = 1, #states do
    local state, payload, fresh = states[place], nil, nil
    if place == own then
      payload, fresh = settle_own(cell.value)
    elseif not is_over then
      local held, by, taken, used = state.capacity, cell.capacity, cost, actual
      if rule == 'proportional' and exact(held, by) then
        if actual <= cost then
          taken, used = floor(min(cost - actual, by) * held / by), 0
        else
          taken, used = 0, ceil(min(actual - cost, by) * held / by)
        end
      elseif rule ~= 'keep' then
        taken = nil
      end
      if taken and used > taken and used - taken > state.left then
        if #states > 1 then state.cut, changed = now, true end
      elseif taken and used <= taken and state.cut >= from and state.cut > before_all then
        taken = nil
      end
      if taken then
        payload, fresh =
          state.kind.settle(state.value, state.at, now, mark, part, taken, used, state[1], state[2], state[3], state[4])
      end
    end
    if payload then
      state.value, state.fresh, changed = sub(state.value, 1, state.at - 1) .. payload, fresh, true
    end
  end
  if not changed then return nil end
  return value_of(states)
end
