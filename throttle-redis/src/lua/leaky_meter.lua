-- The time of the last charge, and the grains that were owed then.

-- part: try
local function debt_leaky_meter(value, at, now, p)
  if not value then return 0, now end
  local last, debt = unpack('<dd', value, at)
  if now > last then debt, last = max(0, debt - (now - last) * p), now end
  return debt, last
end

local function try_leaky_meter(value, at, now, cost, p, q, depth)
  local debt, last = debt_leaky_meter(value, at, now, p)
  debt = debt + cost * q
  if debt > depth then return nil end
  return pack('<dd', last, debt), last + ceil(debt / p)
end

-- part: look
local function look_leaky_meter(value, at, now, p, q, depth)
  local debt = debt_leaky_meter(value, at, now, p)
  return floor((depth - debt) / q), debt > 0
end

-- part: settle
local function settle_leaky_meter(value, at, now, _, _, cost, actual, p, q, depth)
  if actual > cost then
    local left = look_leaky_meter(value, at, now, p, q, depth)
    return try_leaky_meter(value, at, now, min(actual - cost, left), p, q, depth)
  end
  local debt, last = debt_leaky_meter(value, at, now, p)
  debt = max(0, debt - (cost - actual) * q)
  return pack('<dd', last, debt), last + ceil(debt / p)
end
