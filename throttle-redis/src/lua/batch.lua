-- Decides one policy: a batch of several requests. Each request sees what those before it have
-- charged. The first one that is not usual ends it: the general text decides that request and the
-- rest.

if sub(ARGV[3], 1, 1) == '@letter@' then
  local failed

  local function decide_usual()
    -- Locals are faster to read than variables outside.
    local keys, words, header, slack = KEYS, ARGV, ARGV[3], ARGV[2]
    local at = #header + 1
    local a, b, c = unpack('@format@', header, 3)
    for i = 1, #keys do
      local key, cost = keys[i], words[3 + i] + 0
      local value, flag = pcall('GET', key), 'A'
      if value and (@misfit@ or sub(value, 1, at - 1) ~= header) then return end
      local told = @told@
      if cost > 0 then
        local payload, fresh = @try@(value, at, now, cost, a, b, c@variant@)
        if not payload then
          flag = 'D'
        elseif fresh < @latest@ then
          local written = pcall('SET', key, header .. payload, 'PX', max(1, ceil((fresh - now) / 1000)) + slack)
          -- The cause is not a value; the server may be full.
          if written.err then
            failed = written
            return
          end
        else
          return
        end
      end
      reply[i + 1] = pack('<c1I4c0', flag, #told, told)
      decided = i
    end
  end

  _G.pcall(decide_usual)
  if failed then return failed end
  if decided == #KEYS then return table.concat(reply) end
end
