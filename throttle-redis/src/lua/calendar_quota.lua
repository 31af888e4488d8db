-- The start of the day, week or month, and the units used in it. Civil time is UTC plus shift µs.

-- part: try
-- Days since 1970-01-01 of the first of a month, where month 13 is January of the next year. Years
-- begin in March, so that the odd day is the last.
local function first_of_month(year, month)
  local y = month > 2 and year or year - 1
  local m = (month - 3) % 12
  return 365 * y + floor(y / 4) - floor(y / 100) + floor(y / 400) + floor((153 * m + 2) / 5) - 719468
end

local function month_of(day)
  local z = day + 719468
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local m = floor((5 * doy + 2) / 153)
  local year, month = yoe + era * 400, m + 3
  if month > 12 then year, month = year + 1, month - 12 end
  return year, month
end

local function window_calendar_quota(instant, shift, variant)
  local first = floor((instant + shift) / 86400000000)
  local after = first + 1
  if variant == 'w' then
    -- 1970-01-01 was a Thursday.
    first = first - (first + 3) % 7
    after = first + 7
  elseif variant == 'm' then
    local year, month = month_of(first)
    first, after = first_of_month(year, month), first_of_month(year, month + 1)
  end
  return first * 86400000000 - shift, after * 86400000000 - shift
end

local function view_calendar_quota(value, at, now, shift, variant)
  local from, used = now, 0
  if value then
    from, used = unpack('<dd', value, at)
  end
  local start, after = window_calendar_quota(max(now, from), shift, variant)
  return start, start == from and used or 0, after
end

local function try_calendar_quota(value, at, now, cost, limit, shift, _, variant)
  local start, used, after = view_calendar_quota(value, at, now, shift, variant)
  if used + cost > limit then return nil end
  return pack('<dd', start, used + cost), after, used > 0 and after
end

-- part: look
local function look_calendar_quota(value, at, now, limit, shift, _, variant)
  local _, used = view_calendar_quota(value, at, now, shift, variant)
  return limit - used, used > 0
end

-- part: over
local function over_calendar_quota(now, mark, _, shift, _, variant)
  local _, after = window_calendar_quota(mark, shift, variant)
  return after <= now
end

-- part: settle
local function settle_calendar_quota(value, at, now, mark, _, cost, actual, limit, shift, _, variant)
  local start, used = view_calendar_quota(value, at, now, shift, variant)
  if actual <= cost then start, used = unpack('<dd', value, at) end
  if start ~= mark then return nil end
  used = min(limit, max(0, used + actual - cost))
  local after = start
  if used > 0 then _, after = window_calendar_quota(start, shift, variant) end
  return pack('<dd', start, used), after
end

-- part: latest
local function latest_calendar_quota(value, at)
  return (unpack('<d', value, at))
end
