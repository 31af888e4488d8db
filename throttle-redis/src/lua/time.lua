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
