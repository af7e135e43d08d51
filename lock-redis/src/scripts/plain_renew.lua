-- KEYS: the locks. ARGV: holder, lease (ms, lock-delay included) of each. Answers for each: status, number, and -1 or the holder
-- of a grant; a failed item is -1 and its error, and spoils no other.
--@shared
--@plain
--@each
return each(#KEYS, function(i)
  local _, holder, number = read(KEYS[i])
  if holder ~= ARGV[2 * i - 1] then return '0 0 -1' end
  keep(KEYS[i], ARGV[2 * i])
  return '1 ' .. number .. ' ' .. holder
end)
