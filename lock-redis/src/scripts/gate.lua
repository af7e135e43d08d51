-- KEYS: the gate and all counters. Without ARGV it answers the incarnation, whether the gate is open, the largest counter and
-- the largest token epoch. ARGV: the incarnation to open it to, and what the counters and their epochs must be at least. Answers 0
-- where the server has another.
--@shared
local run_id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then error({err = 'ERR the server does not say its run_id'}) end
-- A shut gate says since when it is known to be shut: so a server that was emptied has another incarnation without a start.
local gate = call('GET', KEYS[1]) or ''
if not string.match(gate, '^%x* ?[%d.]*$') then error({err = 'ONELOCKFOREIGN the key ' .. KEYS[1] .. ' is no gate'}) end
if string.match(gate, '^%x+') ~= run_id then
  gate = run_id .. ' ' .. table.concat(call('TIME'), '.')
  call('SET', KEYS[1], gate)
end
if ARGV[1] and ARGV[1] ~= gate then return 0 end
local highest, newest = 0, 0
for i = 2, #KEYS do
  local number, epoch = counter(KEYS[i])
  epoch = tonumber(string.sub(epoch, 1, -2)) or 0
  highest, newest = math.max(highest, number), math.max(newest, epoch)
  if ARGV[1] then
    epoch = math.max(epoch, tonumber(ARGV[3]))
    call('SET', KEYS[i], (epoch > 0 and text(epoch) .. ':' or '') .. text(math.max(number, tonumber(ARGV[2]))))
  end
end
if not ARGV[1] then return {gate, gate == run_id and 1 or 0, highest, newest} end
-- The gate is last: a server that stops half way has another run id when it is back.
call('SET', KEYS[1], run_id)
return 1
