-- KEYS: E O W X, the counter, and the gate where there is one. ARGV: holder, token. Answers 1 when the entry is there and the counter is at least
-- the token, else 0.
at(1)
admitted(KEYS[6])
settle()
if call('HEXISTS', E, ARGV[1]) == 0 then return 0 end
-- Behind a token epoch, where it has one.
local counter = call('GET', KEYS[5]) or '0'
local epoch = string.match(counter, '^%d+:') or ''
local last = tonumber(string.sub(counter, #epoch + 1))
if not last then read(nil) end
if last < tonumber(ARGV[2]) then call('SET', KEYS[5], epoch .. ARGV[2]) end
return 1
