-- KEYS: the locks. ARGV and answers: as in renew.lua.
--@shared
--@plain
--@each
return each(#KEYS, function(i)
  local _, holder, number = read(KEYS[i])
  if holder ~= ARGV[3 * i - 2] then return '0 0 -1' end
  -- Only ever longer, or an end again, and written in any case: `WAIT` waits for the last write of its connection.
  call('PEXPIRE', KEYS[i], text(math.max(ARGV[3 * i - 1], call('PTTL', KEYS[i]))))
  return '1 ' .. number .. ' ' .. holder
end)
