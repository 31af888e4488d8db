-- The time of the last charge, and the grains that were owed then, or of a token bucket those that
-- were left.

-- part: try
local function debt_@name@(value, at, now, p, depth)
  if not value then return 0, now end
  local last, debt = unpack('<dd', value, at)
  debt = @from_depth@debt
  if now > last then debt, last = max(0, debt - (now - last) * p), now end
  return debt, last
end

local function try_@name@(value, at, now, cost, p, q, depth)
  local debt, last = debt_@name@(value, at, now, p, depth)
  local before = debt > 0 and last + ceil(debt / p)
  debt = debt + cost * q
  if debt > depth then return nil end
  return pack('<dd', last, @from_depth@debt), last + ceil(debt / p), before
end

-- part: look
local function look_@name@(value, at, now, p, q, depth)
  local debt = debt_@name@(value, at, now, p, depth)
  return floor((depth - debt) / q), debt > 0
end

-- part: settle
local function settle_@name@(value, at, now, _, _, cost, actual, p, q, depth)
  if actual > cost then
    local left = look_@name@(value, at, now, p, q, depth)
    return try_@name@(value, at, now, min(actual - cost, left), p, q, depth)
  end
  local debt, last = debt_@name@(value, at, now, p, depth)
  debt = max(0, debt - (cost - actual) * q)
  return pack('<dd', last, @from_depth@debt), last + ceil(debt / p)
end
