-- Sets an exception over a key's state, or lifts it if there are no bytes for one.

local cell, over = cell_of(KEYS[1], 1), ARGV[4]
if cell.is_senseless then return 'W' end
local value, p, fresh = cell.value, cell.writer or cell.by, now
if value then
  local mark, part = now, 0
  if p.kind.latest then
    mark = p.kind.latest(value, p.at, now, p[1], p[2], p[3], p[4])
  elseif p.kind.size == 24 then
    -- The next free slot, which a shaper's charge of nothing would have.
    mark, part = unpack('<dd', value, p.at + 8)
  end
  -- Settling nothing shows until when the state counts.
  local _, counts = p.kind.settle(value, p.at, now, mark, part, 0, 0, p[1], p[2], p[3], p[4])
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
return 'A'
