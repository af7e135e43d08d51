-- An entry leaves a settled line in which somebody may wait (`waits`): 1, or 0 when it is not there, or has lost its place.
local function leave(holder, waits)
  local known = call('HDEL', E, holder)
  local left = call('ZREM', O, holder)
  if left == 0 then
    left = call('ZREM', W, holder)
    call('ZREM', X, holder)
  end
  if known == 0 then left = 0 end
  if waits then promote() end
  return left
end
