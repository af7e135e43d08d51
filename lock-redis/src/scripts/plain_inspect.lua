-- KEYS: the lock. Answers now and then, if it is held, 1, the end of its lease, and its text without the holder; of
-- another library's user 3 and the end of its lease or -1.
--@shared
--@plain
local now = millis()
local value, holder, _, rest = read(KEYS[1])
if not value then return {now} end
local left = call('PTTL', KEYS[1])
if not holder then return {now, '3 ' .. (left < 0 and '-1' or text(now + left)) .. ' '} end
return {now, '1 ' .. text(now + math.max(left, 0)) .. ' ' .. rest}
