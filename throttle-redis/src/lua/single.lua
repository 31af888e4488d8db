-- Decides about one policy: several requests that came together, or one that did not fit above.

local header, slack = ARGV[3], ARGV[2]
local at = #header + 1
local a, b, c = unpack('@format@', header, 3)
@variant@

-- Each sees what those before it have charged. What a value cannot tell keeps nobody else from being decided about.
local reply = {pack('<d', now)}
for i = 1, #KEYS do
  local key, cost = KEYS[i], ARGV[3 + i] + 0
  local value, flag, told = pcall('GET', key), 'A', ''
  if value and (@misfit@ or sub(value, 1, at - 1) ~= header) then
    flag = type(value) == 'string' and sub(value, 1, at - 1) ~= header and 'C' or 'W'
  else
    told = @told@
    if cost > 0 then
      local payload, fresh = @try@(value, at, now, cost, a, b, c@with_variant@)
      if payload then
        call('SET', key, header .. payload, 'PX', max(1, ceil((fresh - now) / 1000)) + slack)
      else
        flag = 'D'
      end
    end
  end
  reply[i + 1] = pack('<c1I4c0', flag, #told, told)
end
return concat(reply)
