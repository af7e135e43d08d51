-- KEYS: E O of a line in a slot that is on its way to another node. ARGV: holder. Answers as release.lua does.
-- For a line in which nobody waits: see renew_part.lua.
if call('HLEN', E) ~= call('ZCARD', O) then error({err = 'TRYAGAIN the keys of this line are on two nodes'}) end
-- O first: it is there as long as E has the entry, and a key that is gone must not be touched.
if call('ZREM', O, ARGV[1]) == 0 then return 0 end
call('HDEL', E, ARGV[1])
return 1
