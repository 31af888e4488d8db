-- The sum of units, then a time and units for each run, oldest first. Units of the last window
-- count.

-- part: try
-- The first run that counts, the units that count, and the instant, which never falls behind the
-- newest run.
local function live_sliding_log(value, at, now, window)
  if not value then return at, 0, now end
  local used, from = unpack('<d', value, at)
  if from <= #value then
    local newest = unpack('<d', value, #value - 15)
    if newest > now then now = newest end
  end
  while from <= #value do
    local time, units = unpack('<dd', value, from)
    if time > now - window then break end
    used, from = used - units, from + 16
  end
  return from, used, now
end

local function try_sliding_log(value, at, now, cost, limit, window)
  local from, used, instant = live_sliding_log(value, at, now, window)
  if used + cost > limit then return nil end
  local kept, run, before = '', cost
  if value and from <= #value then
    local newest, units = unpack('<dd', value, #value - 15)
    before = newest + window
    if newest == instant then
      kept, run = sub(value, from, #value - 16), units + cost
    else
      kept = sub(value, from)
    end
  end
  return pack('<d', used + cost) .. kept .. pack('<dd', instant, run), instant + window, before
end

-- part: tell
-- A shorter log with the same answer for this cost: the oldest run, the run that determines the
-- wait, the newest.
local function tell_sliding_log(value, at, now, cost, limit, window)
  local from, used = live_sliding_log(value, at, now, window)
  if #value - from < 48 then return sub(value, 1, at - 1) .. pack('<d', used) .. sub(value, from) end
  local oldest, first = unpack('<dd', value, from)
  local excess, sum, position = used + cost - limit, first, from + 16
  local runs = pack('<dd', oldest, first)
  if excess > sum and cost <= limit then
    local time, units
    while sum < excess do
      time, units = unpack('<dd', value, position)
      sum, position = sum + units, position + 16
    end
    runs = runs .. pack('<dd', time, sum - first)
  end
  if used > sum then runs = runs .. pack('<dd', (unpack('<d', value, #value - 15)), used - sum) end
  return sub(value, 1, at - 1) .. pack('<d', used) .. runs
end

-- part: look
local function look_sliding_log(value, at, now, limit, window)
  local from, used = live_sliding_log(value, at, now, window)
  return max(0, limit - used), value and from <= #value
end

-- part: over
local function over_sliding_log(now, mark, _, window)
  return mark + window <= now
end

-- part: settle
local function settle_sliding_log(value, at, now, mark, _, cost, actual, limit, window)
  if not value then return nil end
  local from, used, instant = live_sliding_log(value, at, now, window)
  local total, position = unpack('<d', value, at)
  while position <= #value do
    local time, units = unpack('<dd', value, position)
    if time == mark then
      local more = actual - cost
      if more > 0 then
        if mark <= instant - window then return nil end
        more = min(more, max(0, limit - used))
      end
      local kept = max(0, units + more)
      local run = kept > 0 and pack('<dd', time, kept) or ''
      local payload = pack('<d', total + kept - units) .. sub(value, at + 8, position - 1) .. run .. sub(value, position + 16)
      local newest = now
      if #payload > 8 then newest = unpack('<d', payload, #payload - 15) + window end
      return payload, newest
    end
    position = position + 16
  end
  return nil
end

-- part: latest
local function latest_sliding_log(value)
  return (unpack('<d', value, #value - 15))
end
