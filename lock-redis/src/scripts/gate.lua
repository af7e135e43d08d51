-- Put before the scripts of a gate. KEYS: the gate and all counters.
local call = redis.call
local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then error({err = 'ERR the server does not say its run_id'}) end

-- The last number of a counter, and what stands before it: a token epoch and a colon, or nothing.
local function counter(key)
  local text = call('GET', key) or '0'
  local epoch = string.match(text, '^%d+:') or ''
  local number = tonumber(string.sub(text, #epoch + 1))
  if not number then error({err = 'ONELOCKFOREIGN the counter ' .. key .. ' is not a number'}) end
  return number, epoch
end
