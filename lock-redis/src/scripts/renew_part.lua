-- KEYS: E of a name that one entry holds, or E O of a line in which nobody waits, in a slot that is on its way to another node.
-- ARGV: holder, lease (ms, lock-delay included). Answers as renew.lua does for one entry. W and X do not exist, and a cluster
-- refuses a script whose keys are not all there. Every entry is in E; so where E has more than O, W and X are on the other node.
--@shared
local TORN = {err = 'TRYAGAIN the keys of this line are on two nodes'}
local holder, lease = ARGV[1], ARGV[2]
if not KEYS[2] then
  local alone = redis.pcall('GET', KEYS[1])
  if type(alone) == 'table' then error(TORN) end
  local number = alone and string.match(alone, '^' .. holder .. ' (%d+) ')
  if not number then return {'0 0 -1'} end
  lengthen(KEYS[1], millis() + lease)
  return {'1 ' .. number .. ' ' .. holder}
end
--@line
if call('HLEN', E) ~= call('ZCARD', O) then error(TORN) end
local entry, ends = call('HGET', E, holder), call('ZSCORE', O, holder)
if not entry or not ends or tonumber(ends) <= now then return {NONE .. FAILED} end
local later = now + tonumber(lease)
if later > tonumber(ends) then
  keep(later, false)
  call('ZADD', O, text(later), holder)
else
  lengthen(E, 0)
end
return {HELD .. read(entry) .. ' ' .. holder}
