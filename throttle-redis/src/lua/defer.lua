-- Another script handles a value that was written under other parameters.

local function foreign(cell)
  cell.flag = 'C'
end

local function settled() end
