-- Put before the verbs of the plain layout. A lock is one string, as `SET name value NX PX` makes it. Ours is
-- "onelock holder number mode joined note"; any other is the lock of another library's user.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Whose the lock is: holder and number, and the rest of the text; nothing for another library's user.
local function read(key)
  local text = call('GET', key)
  if not text then return nil end
  local holder, rest = string.match(text, '^onelock (%x+) (%d+ x %d+ .*)$')
  return text, holder, rest and string.match(rest, '^%d+'), rest
end

local function keep(key, lease)
  if call('PTTL', key) < lease then call('PEXPIRE', key, lease) end
end
