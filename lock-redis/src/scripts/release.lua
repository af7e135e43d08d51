-- KEYS: E O W X. ARGV: holder. Answers 1 when the entry was there and is gone, else 0.
-- Here a holder that is alone; release_line.lua is the rest.
local ends = call('ZSCORE', O, ARGV[1])
local only = ends and tonumber(ends) > now and call('ZCARD', O) == 1
if only and call('EXISTS', W, X) == 0 and call('HDEL', E, ARGV[1]) == 1 then
  call('ZREM', O, ARGV[1])
  return 1
end

