-- A key's content: its value, behind a header that names the parameters that wrote it, or nothing.
-- It is read once, and written once, after everything is decided.

local known = {}

-- The parameters in the header that some bytes begin with; nothing if there is none.
local function parameters_of(bytes)
  local letter = sub(bytes, 1, 1)
  local kind = known[letter] or kind_of(letter)
  if not kind or #bytes < kind.header then return nil end
  known[letter] = kind
  local p = {unpack(kind.format, bytes, 3)}
  p.kind, p.header, p.at, p[4] = kind, sub(bytes, 1, kind.header), kind.header + 1, sub(bytes, 2, 2)
  return p
end

local count = @count@
local parameters = {}
for i = 1, count do parameters[i] = parameters_of(ARGV[2 + i]) end

-- Whether a value has the wrong length. Sizes of 0 and 1 stand for a log and for a ring.
local function misfit(p, value)
  local size, length = p.kind.size, #value - p.kind.header
  if size == 0 then return length % 16 ~= 8 end
  if size == 1 then return length ~= 8 * (p[3] + 2) end
  return length ~= size
end

-- The units left by these parameters, and whether any are in use.
local function left_of(p, value)
  return p.kind.look(value, p.at, now, p[1], p[2], p[3], p[4])
end

-- No limit can reach instants from here on, and the server accepts no such time to live.
local latest = @latest@

local cells, changed = {}, {}

-- The error with which the server refused to read a key, whatever the key holds.
local failed

local function replace(key, value, fresh)
  local cell = cells[key]
  if not cell.fresh then changed[#changed + 1] = key end
  cell.value, cell.writer, cell.fresh = value, nil, fresh
end

-- Takes the exception off a value that no parameters have written: the bytes in front of the key's
-- own value, which are kept when it is written, and the treatment, if it is not over. Returns the
-- parameters that wrote the value beneath.
local function uncover(cell, value)
  if sub(value, 1, 1) ~= 'x' or #value < 10 then return nil end
  local treatment, ends = sub(value, 2, 2), unpack('<d', value, 3)
  local from, decides_until, limit = 11, ends, treatment == 'l' and parameters_of(sub(value, 11))
  if limit then
    from = 11 + limit.kind.header
  elseif treatment == 's' then
    -- Strikes, of which a ban may have come.
    if #value < 42 then return nil end
    from, decides_until = 43, min(ends, (unpack('<d', value, 11)))
  elseif treatment ~= 'e' and treatment ~= 'b' then
    return nil
  end
  if not (ends == floor(ends) and -2^53 < ends and ends < 2^53) then return nil end
  cell.over, cell.ends, cell.value = sub(value, 1, from - 1), ends, #value >= from and sub(value, from)
  if now < decides_until then
    cell.treatment, cell.by = treatment, limit or cell.by
  end
  return cell.value and parameters_of(cell.value) or not cell.value and cell.by
end

-- The cell of a policy's key, with the parameters that decide, and those that wrote the value if
-- they are others.
local function cell_of(key, i)
  local cell = cells[key]
  if cell then return cell end
  local value = pcall('GET', key)
  cell = {value = value, by = parameters[i]}
  if value then
    local writer = type(value) == 'string' and (parameters_of(value) or uncover(cell, value))
    if not writer or cell.value and misfit(writer, cell.value) then
      cell.is_senseless = true
      if value.err and sub(value.err, 1, 9) ~= 'WRONGTYPE' then failed = value end
    elseif writer.header ~= cell.by.header then
      cell.writer = writer
    end
  end
  cells[key] = cell
  return cell
end

local function write()
  for i = 1, #changed do
    local cell = cells[changed[i]]
    local value, fresh = cell.value, cell.fresh
    if cell.over then value, fresh = cell.over .. (value or ''), max(fresh, cell.ends) end
    put(call, changed[i], value, fresh, cell.before)
  end
end
