-- Settles charges with actual usage. If one item cannot be settled, none is.

local word = 2 + count
for i = 1, #KEYS do
  local policy = ARGV[word + 1] + 0
  local mark, part, cost, actual = ARGV[word + 2] + 0, ARGV[word + 3] + 0, ARGV[word + 4] + 0, ARGV[word + 5] + 0
  word = word + 5
  local cell, p = cell_of(KEYS[i], policy), parameters[policy]
  if cell.flag then return cell.flag end
  if cell.states then -- kin
    local value, fresh = settled(cell, policy, mark, part, cost, actual) -- kin
    if value then replace(KEYS[i], cell, value, fresh) end -- kin
  else -- kin
  -- Nothing is left to give back for a key that no longer exists, but a debit is still possible.
  if cell.value or actual > cost then
    local payload, fresh = settles[policy](cell.value, cell.at, now, mark, part, cost, actual, p[1], p[2], p[3], p[4])
    if payload and (cell.value or fresh > now) then replace(KEYS[i], cell, cell.header .. payload, fresh) end
  end
  end -- kin
end
for i = 1, #changed do
  if not (cells[changed[i]].fresh < latest) then return 'W' end
end
write()
return 'A'
