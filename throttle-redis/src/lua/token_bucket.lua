-- The time of the last charge, and the grains that were left then.

-- part: try
local function debt_token_bucket(value, at, now, p, depth)
  if not value then return 0, now end
  local last, left = unpack('<dd', value, at)
  local debt = depth - left
  if now > last then debt, last = max(0, debt - (now - last) * p), now end
  return debt, last
end

local function try_token_bucket(value, at, now, cost, p, q, depth)
  local debt, last = debt_token_bucket(value, at, now, p, depth)
  debt = debt + cost * q
  if debt > depth then return nil end
  return pack('<dd', last, depth - debt), last + ceil(debt / p)
end

-- part: look
local function look_token_bucket(value, at, now, p, q, depth)
  local debt = debt_token_bucket(value, at, now, p, depth)
  return floor((depth - debt) / q), debt > 0
end

-- part: settle
local function settle_token_bucket(value, at, now, _, _, cost, actual, p, q, depth)
  if actual > cost then
    local left = look_token_bucket(value, at, now, p, q, depth)
    return try_token_bucket(value, at, now, min(actual - cost, left), p, q, depth)
  end
  local debt, last = debt_token_bucket(value, at, now, p, depth)
  debt = max(0, debt - (cost - actual) * q)
  return pack('<dd', last, depth - debt), last + ceil(debt / p)
end
