-- Another script handles a value that was written under other parameters.

foreign = function(cell)
  cell.flag = 'C'
end
