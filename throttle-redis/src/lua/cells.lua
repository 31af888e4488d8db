-- A key's content: its value behind a header, or nothing. It is read once, and written once, after everything is
-- decided.

local slack, count = ARGV[2], @count@
local headers, parameters = {}, {}
for i = 1, count do
  local header = ARGV[2 + i]
  headers[i], parameters[i] = header, {unpack(formats[i], header, 3)}
  parameters[i][4] = sub(header, 2, 2)
end

-- Whether a payload has the wrong length. Sizes of 0 and 1 stand for a log and for a ring.
local function misfit(size, length, buckets)
  if size == 0 then return length % 16 ~= 8 end
  if size == 1 then return length ~= 8 * (buckets + 2) end
  return length ~= size
end

-- No limit can reach instants from here on, and the server accepts no such time to live.
local latest = @latest@

local cells, changed = {}, {}

local function replace(key, cell, value, fresh)
  if not cell.fresh then changed[#changed + 1] = key end
  cell.value, cell.fresh = value, fresh
end

local foreign

@foreign@

-- The cell of a policy's key. If there is nothing to decide, its flag says why.
local function cell_of(key, i)
  local cell = cells[key]
  if cell then return cell end
  local header, value = headers[i], pcall('GET', key)
  cell = {key = key, value = value, header = header, at = #header + 1}
  if value then
    if type(value) ~= 'string' then
      cell.flag = 'W'
    elseif sub(value, 1, #header) ~= header then
      foreign(cell, i)
    elseif misfit(sizes[i], #value - #header, parameters[i][3]) then
      cell.flag = 'W'
    end
  end
  cells[key] = cell
  return cell
end

local function write()
  for i = 1, #changed do
    local cell = cells[changed[i]]
    call('SET', changed[i], cell.value, 'PX', max(1, ceil((cell.fresh - now) / 1000)) + slack)
  end
end
