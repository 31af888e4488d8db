-- Decides one policy: a batch of several requests. Each request sees what those before it have
-- charged. The first one that is not usual ends it: the general text decides that request and the
-- rest.

if sub(ARGV[3], 1, 1) == '@letter@' then
  local failed

  local function decide_usual()
    -- Locals are faster to read than variables outside.
    local keys, words, header = KEYS, ARGV, ARGV[3]
    local at = #header + 1
    local a, b, c = unpack('@format@', header, 3)
    local word, cost, size, length
    for i = 1, #keys do
      -- Most costs are the same, and most values have the same length.
      if words[3 + i] ~= word then word, cost = words[3 + i], words[3 + i] + 0 end
      local key, flag = keys[i], 'A'
      local value = pcall('GET', key)
      if value and (@misfit@ or sub(value, 1, at - 1) ~= header) then return end
      local told = @told@
      if cost > 0 then
        local payload, fresh, before = @try@(value, at, now, cost, a, b, c@variant@)
        if not payload then
          flag = 'D'
        elseif fresh < @latest@ then
          local written = put(pcall, key, header .. payload, fresh, before)
          -- The cause is not a value; the server may be full.
          if written.err then
            failed = written
            return
          end
        else
          return
        end
      end
      if #told ~= size then size, length = #told, pack('<I4', #told) end
      local last = #reply
      reply[last + 1], reply[last + 2], reply[last + 3] = flag, length, told
      decided = i
    end
  end

  _G.pcall(decide_usual)
  if failed then return failed end
  if decided == #KEYS then return table.concat(reply) end
end
