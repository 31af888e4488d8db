-- A value of another tier is unchanged until it is charged. Its conversion to the request's tier is not written by
-- itself, and the reply contains the original value. Policies without tiers are carried over at once.

@carry@

local carry_at_once = foreign

-- Products from 2^53 on are not exact.
local function exact(one, other)
  return one * other < 9007199254740992
end

foreign = function(cell, i)
  local value, header, p, rule = cell.value, cell.header, parameters[i], rules[i]
  local same = sub(value, 1, #header - 1) == sub(header, 1, -2)
  if not rule or same then return carry_at_once(cell, i) end
  local old = kinds[sub(value, 1, 1)]
  local q = old and #value >= old.header and {unpack(old.format, value, 3)}
  if not q or misfit(old.size, #value - old.header, q[3]) then
    cell.flag = 'W'
    return
  end
  local variant, at = sub(value, 2, 2), old.header + 1
  local before = old.look(false, at, now, q[1], q[2], q[3], variant)
  local left, in_use = old.look(value, at, now, q[1], q[2], q[3], variant)
  local told, used = before - left, 0
  local capacity = looks[i](false, 1, now, p[1], p[2], p[3], p[4])
  local clipped = sub(value, old.header, old.header) == '1'
  if told > 0 and rule ~= 'reset' then
    if (clipped and capacity > before) or (rule == 'proportional' and not exact(capacity, before)) then
      used = capacity
    elseif rule == 'keep' then
      used = min(told, capacity)
    else
      used = ceil(told * capacity / before)
    end
  end
  cell.kept = {
    q[1], q[2], q[3], value = value, at = at, header = sub(value, 1, old.header), variant = variant,
    settle = old.settle, capacity = before, by = capacity, in_use = in_use
  }
  cell.value = false
  if used > 0 then
    if clipped then cell.clipped, cell.header = true, sub(header, 1, -2) .. '1' end
    cell.value = cell.header .. tries[i](false, 1, now, used, p[1], p[2], p[3], p[4])
  end
end

-- The part of a charge to settle if another tier holds the value by now; nothing if the value no longer contains it, or
-- may not: it was not carried over if its own window had ended before.
local function elsewhere(cell, i, mark, cost, actual)
  local kept, rule, over, p = cell.kept, rules[i], overs[i], parameters[i]
  if not kept.in_use then
    -- The key is idle, so ignore which tier wrote it.
    cell.kept = nil
    return cost, actual
  end
  if over and over(now, mark, p[1], p[2], p[3], p[4]) then return nil end
  if rule == 'keep' then return cost, actual end
  if rule == 'reset' or not exact(kept.capacity, kept.by) then return nil end
  local by, held = kept.by, kept.capacity
  if actual <= cost then return floor((cost - actual) * held / by), 0 end
  return 0, ceil((actual - cost) * held / by)
end
