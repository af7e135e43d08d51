-- KEYS: the locks. ARGV and answers: as in renew.lua.
--@shared
--@plain
--@each
return each(#KEYS, function(i)
  local _, holder, number = read(KEYS[i])
  if holder ~= ARGV[3 * i - 2] then return '0 0 -1' end
  keep(KEYS[i], ARGV[3 * i - 1])
  return '1 ' .. number .. ' ' .. holder
end)
