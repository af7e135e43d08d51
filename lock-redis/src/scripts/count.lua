-- KEYS: E O W X of each line. Answers for each how many entries hold and how many wait; none for keys not ours.
--@shared
--@line
local out = {}
for i = 1, #KEYS / 4 do
  local ok, counts = pcall(function()
    at(4 * i - 3)
    if single() then return {1, 0} end
    settle()
    return {call('ZCARD', O), call('ZCARD', W)}
  end)
  out[i] = ok and counts or {0, 0}
end
return out
