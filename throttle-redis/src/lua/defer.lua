-- A value that other parameters wrote is another script's business.

local function foreign(cell)
  cell.flag = 'C'
end

local function settled() end
