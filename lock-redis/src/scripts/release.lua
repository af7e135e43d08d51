-- KEYS: E O W X. ARGV: holder. Answers 1 when the entry was there and is gone, else 0.
at(1)
local waiters = settle()
if call('HDEL', E, ARGV[1]) == 0 then return 0 end
if call('ZREM', O, ARGV[1]) == 0 then
  call('ZREM', W, ARGV[1])
  call('ZREM', X, ARGV[1])
end
if waiters then promote() end
return 1
