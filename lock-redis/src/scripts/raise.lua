-- KEYS: E O W X, the counter, and the gate where there is one. ARGV: holder, token. Answers 1 when the entry is there and the
-- counter is at least the token, else 0.
--@shared
--@line
admitted(KEYS[6])
local alone = single()
if not alone then settle() end
if alone ~= ARGV[1] and (alone or call('HEXISTS', E, ARGV[1]) == 0) then return 0 end
local last, epoch = counter(KEYS[5])
-- Written in any case: `WAIT` waits for the last write of its connection.
call('SET', KEYS[5], epoch .. text(math.max(last, tonumber(ARGV[2]))))
return 1
