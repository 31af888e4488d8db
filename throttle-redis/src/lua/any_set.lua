-- Decides a set of policies: the requests that the text above did not decide. The tree is in
-- pre-order: a policy as its number, `all` as 0, an `any` that charges the first as -1, an `any`
-- that charges every admitting member as -2, and above an audited policy -3; and for each node the
-- last node below it.

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
            -- An audited policy is charged if it admits, and refuses nothing.
            answer = own or answer or kind == -3
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

local key, word = decided, 2 + count + decided

-- After an `r`, each request's costs are followed by as many reserves: the units that it leaves
-- free. A negative cost is that of a peek, which charges nothing. The texts above take no such
-- calls: there is a word too many, and it is no cost.
local reserves = ARGV[word + 1] == 'r'
if reserves then word = word + 1 end

local node_of = {}
for node = 1, #nodes do
  if nodes[node] > 0 then node_of[nodes[node]] = node end
end

-- The keys of the current request, by policy.
local own

-- The current request is not decided: its part of the reply has no values.
local function pass()
  local parts = {'W'}
  for i = 1, count do
    if own[i] then parts[#parts + 1] = pack('<I4', 0) end
  end
  reply[#reply + 1] = table.concat(parts)
end

-- The value of a key that other parameters have charged, as the call's read it: as many units are
-- used as the writer counts now, at most all. A shaper holds a part of a unit beyond its capacity,
-- which counts as one, too.
local function converted(p, cell)
  local capacity, left, in_use = left_of(p, false), left_of(cell.writer, cell.value)
  local counted = left_of(cell.writer, false) - max(0, left)
  local used = min(capacity, max(counted, in_use and 1 or 0))
  if not (used > 0) then return false end
  -- What may not be delayed is admitted only when nothing is used.
  if sub(p.header, 1, 2) == 'q1' then used = capacity end
  return p.header .. p.kind.try(false, p.at, now, used, p[1], p[2], p[3], p[4])
end

-- Charges all of the chosen policies, or none. Returns whether it charged them.
local function charge()
  choose(1)
  for n = 1, #chosen do
    if not (instants[chosen[n]] < latest) then return false end
  end
  for n = 1, #chosen do
    local i = chosen[n]
    local cell = cells[own[i]]
    if cell.over and cell.ends <= now then cell.over = nil end
    replace(own[i], cell.by.header .. payloads[i], instants[i])
  end
  return true
end

local function decide_rest()
  while word < #ARGV do
    local parts, costs, makes_sense = {}, word, true
    own, admits, payloads, instants, chosen = {}, {}, {}, {}, {}
    for i = 1, count do
      if ARGV[costs + i] ~= '' then key, own[i] = key + 1, KEYS[key + 1] end
    end
    word = costs + (reserves and 2 * count or count)
    for i = 1, count do
      if own[i] then
        local signed, cell = ARGV[costs + i] + 0, cell_of(own[i], i)
        local cost = max(signed, -signed)
        local reserve = reserves and ARGV[costs + count + i] + 0 or 0
        local value, told, p = cell.value, cell.value or '', cell.by
        local kind, is_treated = p.kind, cell.treatment and cell.treatment ~= 'l'
        if cell.is_senseless then
          makes_sense = false
          break
        elseif cell.writer then
          value = converted(p, cell)
        end
        admits[node_of[i]] = true
        if cost > 0 and is_treated then
          -- An exempt key is charged nothing.
          admits[node_of[i]] = cell.treatment == 'e' and cost <= left_of(p, false)
        elseif cost > 0 then
          local payload, instant, before = kind.try(value, p.at, now, cost + reserve, p[1], p[2], p[3], p[4])
          if payload and reserve > 0 then
            payload, instant = kind.try(value, p.at, now, cost, p[1], p[2], p[3], p[4])
          end
          -- An exception, or other parameters, have set another time to live.
          if not (cell.fresh or cell.over or cell.writer) then cell.before = before end
          payloads[i], instants[i], admits[node_of[i]] = payload, instant, payload ~= nil
        end
        if value and kind.tell and not cell.writer and not cell.over then
          -- The next unit that is no part of the reserve ends another wait than a refused cost of
          -- several units: both follow from the whole value only.
          if reserve == 0 then
            told = kind.tell(value, p.at, now, cost, p[1], p[2])
          elseif cost <= 1 or payloads[i] then
            told = kind.tell(value, p.at, now, max(cost, 1) + reserve, p[1], p[2])
          end
        end
        if signed < 0 then payloads[i] = nil end
        if cell.over then told = cell.over .. told end
        parts[#parts + 1] = pack('<I4c0', #told, told)
      end
    end
    if makes_sense and not ask() then
      reply[#reply + 1] = 'D' .. table.concat(parts)
    elseif makes_sense and charge() then
      reply[#reply + 1] = 'A' .. table.concat(parts)
    else
      pass()
    end
  end
end

-- If a value makes the text fail, only its own request is not decided.
while not _G.pcall(decide_rest) do
  pass()
end
if failed then return failed end
write()
return table.concat(reply)
