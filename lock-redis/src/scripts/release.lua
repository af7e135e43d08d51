-- KEYS: E O W X. ARGV: holder. Answers 1 when the entry was there and is gone, else 0.
local holder = ARGV[1]
if redis.call('EXISTS', KEYS[2]) == 0 then
  local alone = redis.pcall('GET', KEYS[1])
  if not alone then return 0 end
  if type(alone) == 'string' and string.sub(alone, 1, 33) == holder .. ' ' then return redis.call('DEL', KEYS[1]) end
end
--@shared
--@line
-- Somebody else's, or not ours.
if single() then return 0 end
-- The only holder, and its lease runs: whether those who follow still live, `promote` looks itself.
local ends = call('ZSCORE', O, holder)
if ends and tonumber(ends) > now and call('ZCARD', O) == 1 and call('HDEL', E, holder) == 1 then
  if call('EXISTS', W, X) > 0 then promote(holder) end
  call('ZREM', O, holder)
  return 1
end
--@leave
return leave(holder, settle())
