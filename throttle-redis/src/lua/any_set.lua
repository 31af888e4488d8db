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

-- Charges all of the chosen policies, or none. Returns whether it charged them.
local function charge()
  for n = 1, #chosen do
    if not (instants[chosen[n]] < latest) then return false end
    settled(cells[own[chosen[n]]], chosen[n])
  end
  for n = 1, #chosen do
    local i = chosen[n]
    change(own[i], cells[own[i]], payloads[i], instants[i])
  end
  return true
end

local function decide_rest()
  while word < #ARGV do
    local flag, parts, costs = nil, {}, word
    own, admits, payloads, instants, chosen = {}, {}, {}, {}, {}
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
          if cell.kept then told, tell = cell.kept.value, nil end -- tiers
          if tell and cell.value then told = tell(told, cell.at, now, cost, p[1], p[2], p[3]) end
          parts[#parts + 1] = pack('<I4c0', #told, told)
          local place = places[i]
          if cost > 0 then
            payloads[i], instants[i] = tries[i](cell.value, cell.at, now, cost, p[1], p[2], p[3], p[4])
            admits[place] = payloads[i] ~= nil
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
      if charge() then
        reply[#reply + 1] = 'A' .. concat(parts)
      else
        pass('W')
      end
    end
  end
end

-- If a value makes the text fail, only its own request is not decided.
while not protected(decide_rest) do
  pass('W')
end
write()
return concat(reply)
