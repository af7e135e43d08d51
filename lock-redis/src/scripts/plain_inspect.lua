-- KEYS: the lock. Answers now and then, if it is held, 1, the end of its lease, and its text without the holder; of
-- another library's user 3, the end of its lease or -1, and nothing.
local text, holder, _, rest = read(KEYS[1])
if not text then return {now} end
local left = call('PTTL', KEYS[1])
if not holder then return {now, 3, left < 0 and -1 or now + left, ''} end
return {now, 1, now + math.max(left, 0), rest}
