-- KEYS: E O W X. ARGV: number. Answers 1 when the entry with this number was there and is gone, else 0.
at(1)
local waiters = settle()
local victim = call('ZRANGEBYSCORE', W, ARGV[1], ARGV[1])[1]
if not victim then
  for _, holder in ipairs(call('ZRANGE', O, 0, -1)) do
    if read(call('HGET', E, holder)) == ARGV[1] then
      victim = holder
      break
    end
  end
end
if not victim then return 0 end
call('HDEL', E, victim)
call('ZREM', O, victim)
call('ZREM', W, victim)
call('ZREM', X, victim)
if waiters then promote() end
return 1
