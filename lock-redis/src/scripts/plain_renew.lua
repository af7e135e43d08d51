-- KEYS: the locks. ARGV and answers: as in renew.lua.
--@shared
--@plain
--@each
return each(#KEYS, function(i)
  local _, holder, number = read(KEYS[i])
  if holder ~= ARGV[3 * i - 2] then return '0 0 -1' end
  -- Only ever longer.
  call('PEXPIRE', KEYS[i], ARGV[3 * i - 1], 'GT')
  return '1 ' .. number .. ' ' .. holder
end)
