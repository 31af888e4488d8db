-- Settles charges with actual usage. If one item cannot be settled, none is.

local word = 2 + count
for i = 1, #KEYS do
  local policy = ARGV[word + 1] + 0
  local mark, part, cost, actual = ARGV[word + 2] + 0, ARGV[word + 3] + 0, ARGV[word + 4] + 0, ARGV[word + 5] + 0
  word = word + 5
  local cell = cell_of(KEYS[i], policy)
  if cell.is_senseless then return failed or 'W' end
  -- The policy settles its charges, whatever decides about the key now.
  local value, p, is_over, writer = cell.value, parameters[policy], false, cell.writer
  if cell.over then
    writer = value and parameters_of(value)
    if writer and writer.header == p.header then writer = nil end
  end
  if writer then
    is_over = p.kind.over and p.kind.over(now, mark, p[1], p[2], p[3], p[4])
    local _, in_use = left_of(writer, value)
    if in_use then
      -- The writer's latest charge stands for this one.
      p, mark, part = writer, now, 0
      if p.kind.latest then mark = p.kind.latest(value, p.at, now, p[1], p[2], p[3], p[4]) end
    else
      value = false
    end
  end
  -- Nothing is left to give back for a key that is unused, but a debit is still possible.
  if not is_over and (value or actual > cost) then
    local payload, fresh = p.kind.settle(value, p.at, now, mark, part, cost, actual, p[1], p[2], p[3], p[4])
    if payload and (value or fresh > now) then replace(KEYS[i], p.header .. payload, fresh) end
  end
end
for i = 1, #changed do
  if not (cells[changed[i]].fresh < latest) then return 'W' end
end
write()
return 'A'
