-- The instant of the decision: now by the server's clock, or, after an `@`, a past instant for
-- requests that were due then; how far it goes back is bounded. A plain number is the time of a
-- test's clock.

-- A local is faster to read than a field of a global. All texts use these.
local call, pcall, pack, unpack, sub = redis.call, redis.pcall, struct.pack, struct.unpack, string.sub
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local time, now = ARGV[1]
if time == '' or sub(time, 1, 1) == '@' then
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
  if time ~= '' then now = max(now - 100000, min(now, sub(time, 2) + 0)) end
else
  now = time + 0
end

-- Writes a value whose key counts as unused from the instant `fresh` on. A key is kept until the
-- slack after the end of the step of this instant, so the time to live stays as it is if the value
-- before, with the instant `before`, was in the same step: a time to live is costly. Versions that
-- know no steps keep a key until the slack after the instant, which is no less than a step.
local function put(run, key, value, fresh, before)
  local step = floor(fresh / @step@)
  if before and floor(before / @step@) == step then return run('SET', key, value, 'KEEPTTL') end
  return run('SET', key, value, 'PX', max(1, ceil(((step + 1) * @step@ - now) / 1000)) + ARGV[2])
end
