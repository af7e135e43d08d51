-- KEYS: E O W X. Answers now and then, flat, for each entry: 1 for a holder or 2 for a waiter, the end of its lease,
-- and its text without the inbox: number, mode, joined, note. Never a holder id.
at(1)
settle()
local out = {now}
local function show(status, holder, ends)
  local text = call('HGET', E, holder)
  if not ends then read(nil) end
  read(text)
  out[#out + 1], out[#out + 2], out[#out + 3] =
    status, tonumber(ends), string.gsub(text, '^(%d+ %w+ %d+) %S+ ', '%1 ', 1)
end
local holders = call('ZRANGE', O, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do show(HELD, holders[i], holders[i + 1]) end
for _, holder in ipairs(call('ZRANGE', W, 0, -1)) do show(WAITS, holder, call('ZSCORE', X, holder)) end
if #out == 1 and call('EXISTS', E) == 1 then read(nil) end
return out
