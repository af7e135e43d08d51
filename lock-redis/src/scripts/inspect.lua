-- KEYS: E O W X. Answers now and then, for each entry, 1 for a holder or 2 for a waiter, the end of its lease, and its text
-- without the inbox: number, mode, joined, note. Never a holder id.
--@shared
--@line
local out = {NOW}
local function show(status, ends, entry)
  if not ends then read(nil) end
  read(entry)
  out[#out + 1] = status .. ends .. ' ' .. string.gsub(entry, '^(%d+ %w+ %d+) %S+ ', '%1 ', 1)
end
local alone, _, entry = single()
if alone then
  show(HELD, text(call('PEXPIRETIME', E)), entry)
  return out
end
settle()
local holders = call('ZRANGE', O, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do show(HELD, holders[i + 1], call('HGET', E, holders[i])) end
for _, holder in ipairs(call('ZRANGE', W, 0, -1)) do show(WAITS, call('ZSCORE', X, holder), call('HGET', E, holder)) end
if #out == 1 and call('EXISTS', E) == 1 then read(nil) end
return out
