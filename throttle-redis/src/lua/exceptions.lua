-- Which of some keys have an exception that is not over: each with the first bytes of its value.

local found = {}
for i = 1, #KEYS do
  local head = pcall('GETRANGE', KEYS[i], 0, 63)
  if type(head) == 'string' and sub(head, 1, 1) == 'x' and #head >= 10 and now < unpack('<d', head, 3) then
    found[#found + 1] = KEYS[i]
    found[#found + 1] = head
  end
  -- The server refuses to read a key, whatever it holds: an empty list would be wrong.
  if type(head) == 'table' and sub(head.err, 1, 9) ~= 'WRONGTYPE' then return head end
end
return found
