-- Decides one policy: a batch of several requests, or one request that the text above did not handle.

local header, slack = ARGV[3], ARGV[2]
local at = #header + 1
local a, b, c = unpack('@format@', header, 3)
@variant@

-- Each request sees what those before it have charged. If a value cannot be read, or makes the text fail, only its own
-- request is not decided.
local reply, decided = {pack('<d', now)}, 0

local function decide_rest()
  -- Locals are faster to read than variables outside.
  local keys, words, header, at, a, b, c = KEYS, ARGV, header, at, a, b, c
  for i = decided + 1, #keys do
    local key, cost = keys[i], words[3 + i] + 0
    local value, flag, told = pcall('GET', key), 'A', ''
    if value and (@misfit@ or sub(value, 1, at - 1) ~= header) then
      flag = type(value) == 'string' and sub(value, 1, at - 1) ~= header and 'C' or 'W'
    else
      told = @told@
      if cost > 0 then
        local payload, fresh = @try@(value, at, now, cost, a, b, c@with_variant@)
        if not payload then
          flag = 'D'
        elseif fresh < @latest@ then
          local written = pcall('SET', key, header .. payload, 'PX', max(1, ceil((fresh - now) / 1000)) + slack)
          -- The cause is not a value; the server may be full.
          if written.err then return written end
        else
          flag, told = 'W', ''
        end
      end
    end
    reply[i + 1] = pack('<c1I4c0', flag, #told, told)
    decided = i
  end
end

local ended, failed = protected(decide_rest)
while not ended do
  decided = decided + 1
  reply[decided + 1] = pack('<c1I4', 'W', 0)
  ended, failed = protected(decide_rest)
end
return failed or concat(reply)
