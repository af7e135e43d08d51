-- KEYS: E O W X. ARGV: number. Answers 1 when the entry with this number was there and is gone, else 0.
--@shared
--@line
--@leave
local alone, number = single()
if alone then return number == ARGV[1] and call('DEL', E) or 0 end
local waits = settle()
local victim = call('ZRANGEBYSCORE', W, ARGV[1], ARGV[1])[1]
if not victim then
  for _, holder in ipairs(call('ZRANGE', O, 0, -1)) do
    if read(call('HGET', E, holder)) == ARGV[1] then victim = holder end
  end
end
return victim and leave(victim, waits) or 0
