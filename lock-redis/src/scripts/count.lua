-- KEYS: E O W X of each line. Answers, flat, how many entries hold and how many wait; -1, -1 for keys not ours.
local out = {}
for i = 1, #KEYS / 4 do
  local ok, holders, waiters = pcall(function()
    at(4 * i - 3)
    settle()
    return call('ZCARD', O), call('ZCARD', W)
  end)
  if not ok then holders, waiters = FAILED, FAILED end
  out[2 * i - 1], out[2 * i] = holders, waiters
end
return out
