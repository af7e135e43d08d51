-- Put before the verbs of the plain layout. A lock is one string, as `SET name value NX PX` makes it. Ours is
-- "onelock holder number mode joined note"; any other is the lock of another library's user.

-- Whose the lock is: holder and number, and the rest of the text; nothing for another library's user.
local function read(key)
  local value = call('GET', key)
  if not value then return nil end
  local holder, rest = string.match(value, '^onelock (%x+) (%d+ x %d+ .*)$')
  return value, holder, rest and string.match(rest, '^%d+'), rest
end
