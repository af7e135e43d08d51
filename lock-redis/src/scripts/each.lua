-- The answers of a renewal, item by item: one that fails is -1 and its error, and spoils no other.
local function each(items, renewed)
  local out = {}
  for i = 1, items do
    local ok, standing = pcall(renewed, i)
    if not ok then
      standing = type(standing) == 'table' and standing.err or tostring(standing)
      -- Not of this item: the client must find another server.
      if string.find(standing, '^%-?READONLY') or string.find(standing, '^%-?NOREPLICAS') then error({err = standing}) end
      standing = '-1 ' .. standing
    end
    out[i] = standing
  end
  return out
end
