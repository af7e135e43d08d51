-- KEYS: the lock, and the counter where the two can be on one server. ARGV: holder, lease (ms, lock-delay included), note.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); a grant names its holder instead.
local lease = tonumber(ARGV[2])
promoted(ARGV[5])
local text, holder, number = read(KEYS[1])
if holder == ARGV[1] then
  keep(KEYS[1], lease)
  return {1, tonumber(number), holder}
end
if text then return {0, 0, math.max(call('PTTL', KEYS[1]), -1)} end
-- A counter that is missing starts at the clock, in units of 16 us so that 48 bits are enough: above all it gave before.
local clock = math.floor((time[1] * 1000000 + time[2]) / 16)
local n = clock
if KEYS[2] then
  -- The first write: where it is refused nothing has happened.
  n = call('INCR', KEYS[2])
  local floor = ARGV[4] and tonumber(ARGV[4]) or n == 1 and clock or 0
  if n <= floor then
    n = floor + 1
    call('SET', KEYS[2], string.format('%.0f', n))
  end
  if n >= 9007199254740992 then error({err = 'ONELOCKLIMIT the counter of this bucket has no numbers left'}) end
end
call('SET', KEYS[1], string.format('onelock %s %.0f x %.0f %s', ARGV[1], n, now, ARGV[3]), 'PX', lease)
return {1, n, ARGV[1]}
