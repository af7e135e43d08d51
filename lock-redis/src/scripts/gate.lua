-- Put before the scripts of a gate. KEYS: the gate and all counters.
local call = redis.call
local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then error({err = 'ERR the server does not say its run_id'}) end

local function counter(key)
  local text = call('GET', key) or '0'
  local number = tonumber(text)
  if not number then error({err = 'ONELOCKFOREIGN the counter ' .. key .. ' is not a number'}) end
  return number
end
