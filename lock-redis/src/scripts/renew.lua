-- KEYS: E O W X of each item, and the gate where there is one. ARGV: holder, lease, waiter lease (ms, lock-delay included) of each item.
-- Answers status, number, time until asking again may help or the holder of a grant, flat, for each; a failed item is
-- -1, its error, -1, and spoils no other.
local out, items = {}, math.floor(#KEYS / 4)
admitted(KEYS[4 * items + 1])
for i = 1, items do
  local ok, status, n, after = pcall(function()
    at(4 * i - 3)
    settle()
    return renew(ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]))
  end)
  if not ok then
    local text = type(status) == 'table' and status.err or tostring(status)
    -- Not of this item: the client must find another server.
    if string.find(text, '^%-?READONLY') or string.find(text, '^%-?NOREPLICAS') then error({err = text}) end
    status, n, after = FAILED, text, FAILED
  end
  out[3 * i - 2], out[3 * i - 1], out[3 * i] = status, n, after
end
return out
