-- KEYS: E O W X. ARGV: holder. Answers 1 when the entry was there and is gone, else 0.
-- Here a holder that is alone; release_line.lua is the rest.
if call('EXISTS', W, X) == 0 and call('ZCARD', O) == 1 then
  local ends = call('ZSCORE', O, ARGV[1])
  if ends and tonumber(ends) > now and call('HDEL', E, ARGV[1]) == 1 then
    call('ZREM', O, ARGV[1])
    return 1
  end
end

