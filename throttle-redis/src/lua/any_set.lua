-- Decides a set of policies: one request, or a batch of several. The tree is in pre-order: a policy as its number,
-- `all` as 0, an `any` that charges the first as -1, an `any` that charges every admitting member as -2; and for each
-- node the last node below it.

local nodes, last = {@nodes@}, {@last@}

local admits, payloads, instants, chosen

-- Whether the tree admits; nil if no policy below a node applies.
local function ask()
  for node = #nodes, 1, -1 do
    local kind = nodes[node]
    if kind <= 0 then
      local answer
      local member = node + 1
      while member <= last[node] do
        local own = admits[member]
        if own ~= nil then
          if kind == 0 then
            answer = own and answer ~= false
          else
            answer = own or answer or false
          end
        end
        member = last[member] + 1
      end
      admits[node] = answer
    end
  end
  return admits[1] ~= false
end

-- The policies that an admitted request is charged to.
local function choose(node)
  local kind = nodes[node]
  if kind > 0 then
    if payloads[kind] then chosen[#chosen + 1] = kind end
    return
  end
  local member = node + 1
  while member <= last[node] do
    if kind == 0 or admits[member] then
      choose(member)
      if kind == -1 then return end
    end
    member = last[member] + 1
  end
end

local reply, key, word = {pack('<d', now)}, 0, 2 + count
local places = {}
for node = 1, #nodes do
  if nodes[node] > 0 then places[nodes[node]] = node end
end

-- The keys of the current request, by policy.
local own

-- The current request is not decided: its part of the reply has no values.
local function pass(flag)
  local parts = {flag}
  for i = 1, count do
    if own[i] then parts[#parts + 1] = pack('<I4', 0) end
  end
  reply[#reply + 1] = concat(parts)
end

-- Charges all of the chosen policies, or none. Returns whether it charged them. `costs` is the word before the costs.
local function charge(costs)
  for n = 1, #chosen do
    local i = chosen[n]
    local cell = cells[own[i]]
    if cell.states then -- kin
      payloads[i], instants[i] = charged(cell, i, payloads[i], instants[i], ARGV[costs + i] + 0) -- kin
    else -- kin
    payloads[i] = cell.header .. payloads[i]
    end -- kin
    if not (instants[i] < latest) then return false end
  end
  for n = 1, #chosen do
    local i = chosen[n]
    replace(own[i], cells[own[i]], payloads[i], instants[i])
  end
  return true
end

local function decide_rest()
  while word < #ARGV do
    local flag, parts, costs = nil, {}, word
    own, admits, payloads, instants, chosen = {}, {}, {}, {}, {}
    local begun = {} -- kin
    for i = 1, count do
      if ARGV[costs + i] ~= '' then key, own[i] = key + 1, KEYS[key + 1] end
    end
    word = costs + count
    for i = 1, count do
      if own[i] then
        local cost, cell, p = ARGV[costs + i] + 0, cell_of(own[i], i), parameters[i]
        if cell.flag then
          if flag ~= 'W' then flag = cell.flag end
        elseif not flag then
          local told, tell = cell.value or '', tells[i]
          if cell.states then told, tell = cell.told, nil end -- kin
          if tell and cell.value then told = tell(told, cell.at, now, cost, p[1], p[2], p[3]) end
          parts[#parts + 1] = pack('<I4c0', #told, told)
          local place = places[i]
          if cost > 0 then
            payloads[i], instants[i] = tries[i](cell.value, cell.at, now, cost, p[1], p[2], p[3], p[4])
            admits[place] = payloads[i] ~= nil
            if not payloads[i] and cell.states then begun[i] = {refused(cell, i, cost)} end -- kin
          else
            admits[place] = true
          end
        end
      end
    end
    if flag then
      pass(flag)
    elseif not ask() then
      reply[#reply + 1] = 'D' .. concat(parts)
    else
      choose(1)
      if charge(costs) then
        reply[#reply + 1] = 'A' .. concat(parts)
      else
        flag = 'W'
        pass(flag)
      end
    end
    for i, value in pairs(begun) do -- kin
      if not flag and value[1] and value[2] < latest then replace(own[i], cells[own[i]], value[1], value[2]) end -- kin
    end -- kin
  end
end

-- If a value makes the text fail, only its own request is not decided.
while not protected(decide_rest) do
  pass('W')
end
write()
return concat(reply)
