-- One request to which all policies of a plain `all` apply, with parameters of the kinds that the
-- set was prepared with, on values that these wrote: the usual case, without tables or a tree. Any
-- other case continues below.

-- part: open
if #KEYS == @count@ and #ARGV == @words@ and @kinds@ then

-- part: read
  local header@i@, key@i@, cost@i@ = ARGV[@header@], KEYS[@i@], ARGV[@cost@] + 0
  local at@i@, value@i@ = #header@i@ + 1, pcall('GET', key@i@)
  local a@i@, b@i@, c@i@ = unpack('@format@', header@i@, 3)
  local fits@i@ = cost@i@ > 0 and (not value@i@ or not (@misfit@) and sub(value@i@, 1, at@i@ - 1) == header@i@)

-- part: told
    local told@i@ = @told@

-- part: ask
    local payload@i@, instant@i@, before@i@ = @try@(value@i@, at@i@, now, cost@i@, a@i@, b@i@, c@i@@variant@)

-- part: ask_next
    local payload@i@, instant@i@, before@i@
    if payload@before@ then
      payload@i@, instant@i@, before@i@ = @try@(value@i@, at@i@, now, cost@i@, a@i@, b@i@, c@i@@variant@)
    end

-- part: write
      put(call, key@i@, header@i@ .. payload@i@, instant@i@, before@i@)
