-- KEYS: the locks. ARGV: holder, lease (ms, lock-delay included) of each.
-- Answers status, number, and -1 or the holder of a grant, flat, for each; a failed item is -1, its error, -1, and
-- spoils no other.
local out = {}
for i = 1, #KEYS do
  local ok, status, n, after = pcall(function()
    local _, holder, number = read(KEYS[i])
    if holder ~= ARGV[2 * i - 1] then return 0, 0, -1 end
    keep(KEYS[i], tonumber(ARGV[2 * i]))
    return 1, tonumber(number), holder
  end)
  if not ok then
    n = type(status) == 'table' and status.err or tostring(status)
    -- Not of this item: the client must find another server.
    if string.find(n, '^%-?READONLY') or string.find(n, '^%-?NOREPLICAS') then error({err = n}) end
    status, after = -1, -1
  end
  out[3 * i - 2], out[3 * i - 1], out[3 * i] = status, n, after
end
return out
