-- The start of the window, and the units used in it.

-- part: try
local function view_fixed_window(value, at, now, length, offset)
  local from, used = now, 0
  if value then
    from, used = unpack('<dd', value, at)
  end
  local start = floor((max(now, from) - offset) / length) * length + offset
  return start, start == from and used or 0
end

local function try_fixed_window(value, at, now, cost, limit, length, offset)
  local start, used = view_fixed_window(value, at, now, length, offset)
  if used + cost > limit then return nil end
  return pack('<dd', start, used + cost), start + length, used > 0 and start + length
end

-- part: look
local function look_fixed_window(value, at, now, limit, length, offset)
  local _, used = view_fixed_window(value, at, now, length, offset)
  return limit - used, used > 0
end

-- part: over
-- If the limit has changed since the charge, the mark need not be the start of a window.
local function over_fixed_window(now, mark, _, length, offset)
  return floor((mark - offset) / length) * length + offset + length <= now
end

-- part: settle
local function settle_fixed_window(value, at, now, mark, _, cost, actual, limit, length, offset)
  local start, used = view_fixed_window(value, at, now, length, offset)
  if actual <= cost then start, used = unpack('<dd', value, at) end
  if start ~= mark then return nil end
  used = min(limit, max(0, used + actual - cost))
  return pack('<dd', start, used), used > 0 and start + length or start
end

-- part: latest
local function latest_fixed_window(value, at)
  return (unpack('<d', value, at))
end
