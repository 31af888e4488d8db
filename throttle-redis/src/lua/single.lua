-- Decides about one policy: several requests that came together, or one that did not fit above.

local header, slack = ARGV[3], ARGV[2]
local at = #header + 1
local a, b, c = unpack('@format@', header, 3)
@variant@

-- The value of a key, or a flag that says why there is nothing to decide.
local function read(key)
  local value = pcall('GET', key)
  if not value then return value end
  if type(value) ~= 'string' then return nil, 'W' end
  if sub(value, 1, at - 1) ~= header then return nil, 'C' end
  if @misfit@ then return nil, 'W' end
  return value
end

local function keep(key, value, fresh)
  call('SET', key, value, 'PX', max(1, ceil((fresh - now) / 1000)) + slack)
end

-- Each sees what those before it have charged; every key that changed is written once, when all have been decided.
local values, flags, instants, changed = {}, {}, {}, {}
local reply = {pack('<d', now)}
for i = 1, #KEYS do
  local key, cost = KEYS[i], ARGV[3 + i] + 0
  local value = values[key]
  if value == nil then
    value, flags[key] = read(key)
    values[key] = value or false
  end
  local flag, told = flags[key], ''
  if not flag then
    flag, told = 'A', @told@
    if cost > 0 then
      local payload, fresh = @try@(value, at, now, cost, a, b, c@with_variant@)
      if payload then
        if not instants[key] then changed[#changed + 1] = key end
        values[key], instants[key] = header .. payload, fresh
      else
        flag = 'D'
      end
    end
  end
  reply[i + 1] = pack('<c1I4c0', flag, #told, told)
end
for i = 1, #changed do keep(changed[i], values[changed[i]], instants[changed[i]]) end
return concat(reply)
