-- KEYS: as in renew_part.lua. ARGV: holder. Answers as release.lua does.
local call, holder = redis.call, ARGV[1]
local TORN = {err = 'TRYAGAIN the keys of this line are on two nodes'}
if not KEYS[2] then
  local alone = redis.pcall('GET', KEYS[1])
  if type(alone) == 'table' then error(TORN) end
  return alone and string.sub(alone, 1, 33) == holder .. ' ' and call('DEL', KEYS[1]) or 0
end
if call('HLEN', KEYS[1]) ~= call('ZCARD', KEYS[2]) then error(TORN) end
-- O first: it is there as long as E has the entry, and a key that is gone must not be touched.
if call('ZREM', KEYS[2], holder) == 0 then return 0 end
call('HDEL', KEYS[1], holder)
return 1
