-- KEYS: the lock. Answers now and then, if it is held, 1, the end of its lease, and its text without the holder.
local text, holder, _, rest = read(KEYS[1])
if not text then return {now} end
local left = call('PTTL', KEYS[1])
if not holder then
  error({err = 'ONELOCKFOREIGN it is held by the user of another library'
    .. (left >= 0 and ', for ' .. left .. ' ms yet' or ', without an end')})
end
return {now, 1, now + math.max(left, 0), rest}
