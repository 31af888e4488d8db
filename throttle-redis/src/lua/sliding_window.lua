-- The time of the last charge, then the counters of the sub-windows up to the one of that charge
-- and one more, as a ring: sub-window n has the index n modulo their number. The newest count in
-- full, the oldest by its overlap.

-- part: try
local function ring_sliding_window(value, at, now, width, buckets)
  if not value then
    local counters = {}
    for i = 1, buckets + 1 do counters[i] = 0 end
    return counters, now
  end
  local counters = {unpack('<' .. string.rep('d', buckets + 1), value, at + 8)}
  return counters, (unpack('<d', value, at))
end

-- The units that count at this instant, and the sub-windows of the instant and of the last charge.
local function used_sliding_window(counters, last, now, width, buckets)
  local instant, newest = max(now, last), floor(last / width)
  local index = floor(instant / width)
  local full, fading = 0, 0
  if index - buckets <= newest then
    -- Counted in steps: adding one to a senseless number may not change it, and a loop up to it
    -- would not end. The newest is no later than the instant, unless the width makes no sense.
    for step = 0, min(newest - index, 0) + buckets - 1 do
      full = full + counters[(newest - step) % (buckets + 1) + 1]
    end
    fading = counters[(index - buckets) % (buckets + 1) + 1]
  end
  local left = width - (instant - index * width)
  return full + ceil(fading * left / width), index, newest, instant
end

local function kept_sliding_window(counters, last, newest, width, buckets)
  local fresh = last
  for step = 0, buckets do
    if counters[(newest - step) % (buckets + 1) + 1] > 0 then
      fresh = (newest - step + buckets + 1) * width
      break
    end
  end
  local parts = {pack('<d', last)}
  for i = 1, buckets + 1 do parts[i + 1] = pack('<d', counters[i]) end
  return table.concat(parts), fresh
end

local function try_sliding_window(value, at, now, cost, limit, width, buckets)
  local counters, last = ring_sliding_window(value, at, now, width, buckets)
  local used, index, newest, instant = used_sliding_window(counters, last, now, width, buckets)
  if used + cost > limit then return nil end
  -- Sub-windows passed since the last charge take the slots of those that have left the window.
  for step = 0, min(index - newest, buckets + 1) - 1 do counters[(index - step) % (buckets + 1) + 1] = 0 end
  local slot = index % (buckets + 1) + 1
  local before = counters[slot] > 0 and (index + buckets + 1) * width
  counters[slot] = counters[slot] + cost
  local payload, fresh = kept_sliding_window(counters, instant, index, width, buckets)
  return payload, fresh, before
end

-- part: look
local function look_sliding_window(value, at, now, limit, width, buckets)
  local counters, last = ring_sliding_window(value, at, now, width, buckets)
  local used = used_sliding_window(counters, last, now, width, buckets)
  return max(0, limit - used), used > 0
end

-- part: over
local function over_sliding_window(now, mark, _, width, buckets)
  return floor(now / width) - mark > buckets
end

-- part: settle
local function settle_sliding_window(value, at, now, mark, _, cost, actual, limit, width, buckets)
  if not value then return nil end
  local counters, last = ring_sliding_window(value, at, now, width, buckets)
  local used, index, newest = used_sliding_window(counters, last, now, width, buckets)
  local age = newest - mark
  if age < 0 or age > buckets then return nil end
  local slot = mark % (buckets + 1) + 1
  if actual <= cost then
    counters[slot] = max(0, counters[slot] + actual - cost)
  elseif index - mark < buckets and counters[slot] > 0 then
    -- If nothing is left of a charge, it has no debit either.
    counters[slot] = counters[slot] + min(actual - cost, max(0, limit - used))
  end
  return kept_sliding_window(counters, last, newest, width, buckets)
end

-- part: latest
local function latest_sliding_window(value, at, _, _, width)
  return floor(unpack('<d', value, at) / width)
end
