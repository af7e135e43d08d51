-- KEYS: the gate and all counters. Without ARGV it answers the incarnation, whether the gate is open, and the largest counter.
-- ARGV: the incarnation to open it to, and where the counters must be at least. Answers 0 where the server has another.
--@shared
local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then error({err = 'ERR the server does not say its run_id'}) end
-- A shut gate says since when it is known to be shut: so a server that was emptied has another incarnation without a start.
local gate = call('GET', KEYS[1]) or ''
if string.match(gate, '^%x+') ~= run_id then
  gate = run_id .. ' ' .. table.concat(call('TIME'), '.')
  call('SET', KEYS[1], gate)
end
if ARGV[1] and ARGV[1] ~= gate then return 0 end
local highest = 0
for i = 2, #KEYS do
  local number, epoch = counter(KEYS[i])
  if ARGV[1] and number < tonumber(ARGV[2]) then call('SET', KEYS[i], epoch .. ARGV[2]) end
  highest = math.max(highest, number)
end
if not ARGV[1] then return {gate, gate == run_id and 1 or 0, highest} end
-- The gate is last: a server that stops half way has another run id when it is back.
call('SET', KEYS[1], run_id)
return 1
