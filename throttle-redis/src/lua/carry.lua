-- A value written under other parameters: what was used under them stays used, up to the new capacity. If that cuts
-- something off, the header's last byte records that more may have been used.

local function foreign(cell, i)
  local value, header, p = cell.value, cell.header, parameters[i]
  if sub(value, 1, #header - 1) == sub(header, 1, -2) and sub(value, #header, #header) == '1' then
    -- The same parameters, but something was cut off before.
    if misfit(sizes[i], #value - #header, p[3]) then
      cell.flag = 'W'
    else
      cell.clipped, cell.header = true, sub(value, 1, #header)
    end
    return
  end
  local old = kinds[sub(value, 1, 1)]
  local q = old and #value >= old.header and {unpack(old.format, value, 3)}
  if not q or misfit(old.size, #value - old.header, q[3]) then
    cell.flag = 'W'
    return
  end
  local variant, at = sub(value, 2, 2), old.header + 1
  local before = old.look(false, at, now, q[1], q[2], q[3], variant)
  local told = before - old.look(value, at, now, q[1], q[2], q[3], variant)
  cell.value = false
  if told <= 0 then return end
  local capacity = looks[i](false, 1, now, p[1], p[2], p[3], p[4])
  local clipped = sub(value, old.header, old.header) == '1'
  local all = clipped and capacity > before
  local used = all and capacity or told
  if clipped or used > capacity then
    cell.clipped, cell.header = true, sub(header, 1, -2) .. '1'
  end
  local payload, fresh = tries[i](false, 1, now, min(used, capacity), p[1], p[2], p[3], p[4])
  change(cell.key, cell, payload, fresh)
end

-- A value that has recovered is complete again: nothing of it is cut off any more.
local function settled(cell, i)
  local p = parameters[i]
  if cell.clipped then
    local _, used = looks[i](cell.value, cell.at, now, p[1], p[2], p[3], p[4])
    if not used then cell.clipped, cell.header = false, headers[i] end
  end
end
