-- The start of the running interval, and the tokens left in it.
-- Variants: 1 starts intervals at whole multiples, 2 makes every interval an account of its own.

-- part: try
local function view_interval_bucket(value, at, now, capacity, refill, interval, variant)
  local tokens = capacity
  if value then
    local anchor, left = unpack('<dd', value, at)
    if anchor > now then now = anchor end
    local elapsed = floor((now - anchor) / interval)
    if elapsed < ceil((capacity - left) / refill) then return anchor + elapsed * interval, left + elapsed * refill end
  end
  if variant == '1' then now = floor(now / interval) * interval end
  return now, tokens
end

local function kept_interval_bucket(anchor, tokens, capacity, refill, interval)
  return pack('<dd', anchor, tokens), anchor + ceil((capacity - tokens) / refill) * interval
end

local function try_interval_bucket(value, at, now, cost, capacity, refill, interval, variant)
  local anchor, tokens = view_interval_bucket(value, at, now, capacity, refill, interval, variant)
  if tokens < cost then return nil end
  local payload, fresh = kept_interval_bucket(anchor, tokens - cost, capacity, refill, interval)
  return payload, fresh, tokens < capacity and anchor + ceil((capacity - tokens) / refill) * interval
end

-- part: look
local function look_interval_bucket(value, at, now, capacity, refill, interval, variant)
  local _, tokens = view_interval_bucket(value, at, now, capacity, refill, interval, variant)
  return tokens, tokens < capacity
end

-- part: over
local function over_interval_bucket(now, mark, _, _, interval, variant)
  return variant == '2' and mark + interval <= now
end

-- part: settle
local function settle_interval_bucket(value, at, now, mark, _, cost, actual, capacity, refill, interval, variant)
  local anchor, tokens = view_interval_bucket(value, at, now, capacity, refill, interval, variant)
  if anchor ~= mark and variant == '2' then
    if actual <= cost then return nil end
    -- Nothing is left to debit there, but the bucket moves on to the present instant.
    actual = cost
  end
  return kept_interval_bucket(anchor, min(capacity, max(0, tokens + cost - actual)), capacity, refill, interval)
end

-- part: latest
local function latest_interval_bucket(value, at, now, capacity, refill, interval, variant)
  return (view_interval_bucket(value, at, now, capacity, refill, interval, variant))
end
