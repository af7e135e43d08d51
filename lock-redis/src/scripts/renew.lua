-- KEYS: E O W X of each item, and the gate where there is one. ARGV: holder, lease, waiter lease (ms, lock-delay included) of each item.
-- Answers for each: status, number, time until asking again may help or the holder of a grant; a failed item is -1 and its error,
-- and spoils no other.
--@shared
--@line
--@each
local items = math.floor(#KEYS / 4)
admitted(KEYS[4 * items + 1])
return each(items, function(i)
  at(4 * i - 3)
  local holder, lease = ARGV[3 * i - 2], ARGV[3 * i - 1]
  local alone, number = single()
  if alone == holder then
    lengthen(E, now + lease)
    return HELD .. number .. ' ' .. holder
  end
  if alone then return NONE .. FAILED end
  settle()
  return renew(holder, tonumber(lease), tonumber(ARGV[3 * i]))
end)
