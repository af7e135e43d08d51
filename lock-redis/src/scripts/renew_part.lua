-- KEYS: E O of a line in a slot that is on its way to another node. ARGV: holder, lease (ms, lock-delay included).
-- Answers as renew.lua does for one entry. For a line in which nobody waits: W and X do not exist, and a cluster refuses a
-- script whose keys are not all there. Every entry is in E; so where E has more than O, W and X are on the other node.
if call('HLEN', E) ~= call('ZCARD', O) then error({err = 'TRYAGAIN the keys of this line are on two nodes'}) end
local entry, ends = call('HGET', E, ARGV[1]), call('ZSCORE', O, ARGV[1])
if not entry or not ends or tonumber(ends) <= now then return {NONE, 0, FAILED} end
local later = now + tonumber(ARGV[2])
if later > tonumber(ends) then
  local at = text(math.max(call('PEXPIRETIME', E), later + SLACK))
  call('PEXPIREAT', E, at)
  call('PEXPIREAT', O, at)
  call('ZADD', O, text(later), ARGV[1])
end
return {HELD, tonumber((read(entry))), ARGV[1]}
