-- KEYS: the lock, and the counter where the two can be on one server.
-- ARGV: as in acquire.lua.
-- Answers status, number, time until asking again may help (-1: unknown); a grant names its holder instead.
--@shared
--@number
--@plain
promoted(ARGV[9])
local value, holder, own = read(KEYS[1])
if holder == ARGV[1] then
  -- Only ever longer, or an end again, and written in any case: `WAIT` waits for the last write of its connection.
  call('PEXPIRE', KEYS[1], text(math.max(ARGV[2], call('PTTL', KEYS[1]))))
  return '1 ' .. own .. ' ' .. holder
end
if value then return '0 0 ' .. text(math.max(call('PTTL', KEYS[1]), -1)) end
local n = KEYS[2] and number(KEYS[2], ARGV[8], ARGV[7]) or text(clock())
call('SET', KEYS[1], 'onelock ' .. ARGV[1] .. ' ' .. n .. ' x ' .. millis() .. string.match(ARGV[6], ' .*'), 'PX', ARGV[2])
return '1 ' .. n .. ' ' .. ARGV[1]
