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
  local said = ok or type(counts) == 'table' and counts.err or counts
  if not ok and not string.find(said, 'ONELOCKFOREIGN') and not string.find(said, 'WRONGTYPE') then error({err = said}) end
  out[i] = ok and counts or {0, 0}
end
return out
