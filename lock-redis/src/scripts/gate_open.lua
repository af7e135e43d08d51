--@gate
-- ARGV: the run id to open it to, and where the counters must be at least. Answers 0 where the server has another.
if run_id ~= ARGV[1] then return 0 end
local floor = tonumber(ARGV[2])
-- The gate is last: a server that stops half way has another run id when it is back.
for i = 2, #KEYS do
  local number, epoch = counter(KEYS[i])
  if number < floor then call('SET', KEYS[i], epoch .. ARGV[2]) end
end
call('SET', KEYS[1], run_id)
return 1
