-- KEYS: E O W X and the counter. ARGV: holder, token. Answers 1 when the entry is there and the counter is at least
-- the token, else 0. Behind them, where a replica can be promoted, as for an acquire: a number of a later epoch is not
-- to be given out before its time.
at(1)
promoted(ARGV[4])
if ARGV[3] and tonumber(ARGV[2]) > tonumber(ARGV[3]) + 68719476736 then
  error({err = 'ONELOCKRAISE this token is past the numbers of the present failover epoch'})
end
settle()
if call('HEXISTS', E, ARGV[1]) == 0 then return 0 end
local counter = tonumber(call('GET', KEYS[5]) or '0')
if not counter then read(nil) end
if counter < tonumber(ARGV[2]) then call('SET', KEYS[5], ARGV[2]) end
return 1
