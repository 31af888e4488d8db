-- Sets an exception over a key's state, or lifts it if there are no bytes for one, or counts a
-- strike by the numbers of a ban.

-- The bytes after one more strike, and whether it has begun a ban; nothing if it does not count.
local function struck(cell, after, growth, within, length, up_to, forgotten)
  local banned, since, strikes, level, is_ban = 1 - 2^53, now, 0, 0, false
  if cell.over and now < cell.ends then
    if sub(cell.over, 2, 2) ~= 's' then return nil end
    banned, since, strikes, level = unpack('<dddd', cell.over, 11)
  end
  if now < banned then
    if banned <= now + up_to then return nil end
    banned = now + up_to
  else
    if banned + forgotten <= now then level = 0 end
    if strikes == 0 or since + within < now then strikes, since = 0, now end
    strikes, since = strikes + 1, min(since, now)
    is_ban = strikes >= after
  end
  if is_ban then
    for _ = 1, level do length = min(length * growth, up_to) end
    banned, level, strikes = now + length, min(20, level + 1), 0
  end
  local counted, remembered = now, now
  if strikes > 0 then counted = since + within + 1 end
  if level > 0 then remembered = banned + forgotten end
  return 'xs' .. pack('<ddddd', max(counted, remembered), banned, since, strikes, level), is_ban
end

local cell, over, is_ban = cell_of(KEYS[1], 1), ARGV[4], false
if cell.is_senseless then return failed or 'W' end
if ARGV[5] then
  over, is_ban = struck(cell, ARGV[5] + 0, ARGV[6] + 0, ARGV[7] + 0, ARGV[8] + 0, ARGV[9] + 0, ARGV[10] + 0)
  if not over then return 'A' end
end
local value, p, fresh = cell.value, cell.writer or cell.by, now
if value and p.kind.size == 24 then
  -- The next free slot, also where the clock has stepped back before it.
  local whole, frac = unpack('<dd', value, p.at + 8)
  fresh = frac > 0 and whole + 1 or whole
elseif value then
  local mark = p.kind.latest and p.kind.latest(value, p.at, now, p[1], p[2], p[3], p[4]) or now
  -- Settling nothing shows until when the state counts.
  local _, counts = p.kind.settle(value, p.at, now, mark, 0, 0, 0, p[1], p[2], p[3], p[4])
  fresh = counts or now
end
if over ~= '' then
  local ends = unpack('<d', over, 3)
  if ends <= now then return 'P' end
  cell.over, cell.ends = over, ends
elseif not cell.over then
  return 'A'
elseif value then
  cell.over = nil
else
  call('DEL', KEYS[1])
  return 'A'
end
if not (fresh < latest) then return 'W' end
replace(KEYS[1], value, fresh)
write()
return is_ban and 'B' .. over or 'A'
