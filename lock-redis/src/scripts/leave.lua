-- An entry leaves a settled line in which somebody may wait (`waits`): 1, or 0 when it is not there.
local function leave(holder, waits)
  if call('HDEL', E, holder) == 0 then return 0 end
  if call('ZREM', O, holder) == 0 then drop(holder) end
  if waits then promote() end
  return 1
end
