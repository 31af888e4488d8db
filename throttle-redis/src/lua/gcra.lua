-- The theoretical arrival time: whole µs, and frac p-ths of one.
-- p grains drain each µs, a unit is q grains, at most depth are owed.

-- part: try
local function try_gcra(value, at, now, cost, p, q, depth)
  local whole, frac, before = now, 0
  if value then
    local w, f = unpack('<dd', value, at)
    before = f > 0 and w + 1 or w
    if w >= now then whole, frac = w, f end
  end
  local debt = frac + cost * q
  if (whole - now) * p + debt > depth then return nil end
  local carried = floor(debt / p)
  whole, frac = whole + carried, debt - carried * p
  return pack('<dd', whole, frac), frac > 0 and whole + 1 or whole, before
end

-- part: look
local function look_gcra(value, at, now, p, q, depth)
  local debt = 0
  if value then
    local whole, frac = unpack('<dd', value, at)
    if whole >= now then debt = (whole - now) * p + frac end
  end
  return debt < depth and floor((depth - debt) / q) or 0, debt > 0
end

-- part: settle
local function settle_gcra(value, at, now, _, _, cost, actual, p, q, depth)
  if actual > cost then
    return try_gcra(value, at, now, min(actual - cost, (look_gcra(value, at, now, p, q, depth))), p, q, depth)
  end
  local whole, frac = unpack('<dd', value, at)
  -- Another algorithm with a larger capacity may have charged it: in this state no more than the
  -- depth can be owed.
  local back = min((cost - actual) * q, depth)
  local carried = floor(back / p)
  whole, frac = whole - carried, frac - (back - carried * p)
  if frac < 0 then whole, frac = whole - 1, frac + p end
  if whole < now then whole, frac = now, 0 end
  return pack('<dd', whole, frac), frac > 0 and whole + 1 or whole
end
