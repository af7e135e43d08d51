-- KEYS: the lock. ARGV: holder or number. Answers 1 when it was there and is gone, else 0.
--@shared
--@plain
local _, holder, number = read(KEYS[1])
if not holder or (holder ~= ARGV[1] and number ~= ARGV[1]) then return 0 end
return call('DEL', KEYS[1])
