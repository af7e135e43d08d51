-- KEYS: E O W X. ARGV: holder. Answers 1 when the entry was there and is gone, else 0.
-- A holder that is alone.
local ends = call('ZSCORE', O, ARGV[1])
local only = ends and tonumber(ends) > now and call('ZCARD', O) == 1
if only and call('EXISTS', W, X) == 0 and call('HDEL', E, ARGV[1]) == 1 then
  call('ZREM', O, ARGV[1])
  return 1
end

-- The only holder, and its lease runs: whether those who follow still live, `promote` looks itself.
if only and call('HDEL', E, ARGV[1]) == 1 then
  promote(ARGV[1])
  call('ZREM', O, ARGV[1])
  return 1
end
local waiters = settle()
if call('HDEL', E, ARGV[1]) == 0 then return 0 end
if call('ZREM', O, ARGV[1]) == 0 then
  call('ZREM', W, ARGV[1])
  call('ZREM', X, ARGV[1])
end
if waiters then promote() end
return 1
