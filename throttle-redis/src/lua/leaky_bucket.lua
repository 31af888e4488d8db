-- The time of the last charge, then the next free slot as in gcra: whole µs, and frac p-ths of one.
-- Its clock never falls behind the last charge. The variant 1 refuses what would be delayed. There
-- the first number is the time since which each charge has followed the one before it at once.

-- part: try
local function slot_leaky_bucket(value, at, now)
  if not value then return now, 0, now end
  local last, whole, frac = unpack('<ddd', value, at)
  if last > now then now = last end
  if whole < now then whole, frac = now, 0 end
  return whole, frac, now
end

-- The first number after a charge.
local function first_leaky_bucket(value, at, last, variant)
  if variant ~= '1' or not value then return last end
  local since, free = unpack('<dd', value, at)
  return free + 1 >= last and since or last
end

local function try_leaky_bucket(value, at, now, cost, p, q, depth, variant, may_wait)
  local whole, frac, last = slot_leaky_bucket(value, at, now)
  if variant == '1' and not may_wait and whole > now and (whole > last or frac > 0) then return nil end
  local debt = frac + cost * q
  if (whole - last) * p + debt > depth then return nil end
  local before = frac > 0 and whole + 1 or whole > last and whole
  last = first_leaky_bucket(value, at, last, variant)
  local carried = floor(debt / p)
  whole, frac = whole + carried, debt - carried * p
  return pack('<ddd', last, whole, frac), frac > 0 and whole + 1 or whole, before
end

-- part: look
local function look_leaky_bucket(value, at, now, p, q, depth, variant)
  local whole, frac, last = slot_leaky_bucket(value, at, now)
  if variant == '1' and whole > now and (whole > last or frac > 0) then return 0, true end
  local debt = (whole - last) * p + frac
  return debt < depth and floor((depth - debt) / q) or 0, debt > 0
end

-- part: settle
local function later_leaky_bucket(whole, frac, cost, p, q)
  local debt = frac + cost * q
  local carried = floor(debt / p)
  return whole + carried, debt - carried * p
end

-- A slot is given back only if no later slot is scheduled. Without delays, a part of a charge is
-- given back unless the schedule was free since. If it is free now, there is nothing to give back.
local function settle_leaky_bucket(value, at, now, slot, part, cost, actual, p, q, depth, variant)
  if actual > cost then
    local left = look_leaky_bucket(value, at, now, p, q, depth)
    if left > 0 then
      return try_leaky_bucket(value, at, now, min(actual - cost, left), p, q, depth, variant, true)
    end
    -- Nothing is left to debit, but the state records the present instant.
    local whole, frac, last = slot_leaky_bucket(value, at, now)
    last = first_leaky_bucket(value, at, last, variant)
    return pack('<ddd', last, whole, frac), frac > 0 and whole + 1 or whole
  end
  local last, whole, frac = unpack('<ddd', value, at)
  -- Another algorithm with a larger capacity may have charged it, and then the mark is not a slot.
  local back, most = cost - actual, floor(depth / q)
  cost, back = min(cost, most), min(back, most)
  local from = max(now, last)
  if variant == '1' and (whole < from or whole == from and frac == 0) then return nil end
  if variant == '1' and back < cost then
    if slot < last then return nil end
    local carried = floor(back * q / p)
    whole, frac = whole - carried, frac - (back * q - carried * p)
    if frac < 0 then whole, frac = whole - 1, frac + p end
    if whole < from then whole, frac = from, 0 end
    return pack('<ddd', last, whole, frac), frac > 0 and whole + 1 or whole
  end
  local w, f = later_leaky_bucket(slot, part, cost, p, q)
  if part >= p or w ~= whole or f ~= frac then return nil end
  whole, frac = later_leaky_bucket(slot, part, max(0, cost - back), p, q)
  if whole < from then whole, frac = from, 0 end
  return pack('<ddd', last, whole, frac), frac > 0 and whole + 1 or whole
end
