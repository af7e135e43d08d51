-- KEYS: the lock, and the counter where the two can be on one server.
-- ARGV: holder, lease (ms, lock-delay included), note, token epoch.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); a grant names its holder instead.
local lease = tonumber(ARGV[2])
promoted(ARGV[6])
local text, holder, own = read(KEYS[1])
if holder == ARGV[1] then
  keep(KEYS[1], lease)
  return {1, tonumber(own), holder}
end
if text then return {0, 0, math.max(call('PTTL', KEYS[1]), -1)} end
local n = KEYS[2] and number(KEYS[2], ARGV[5], ARGV[4]) or clock()
call('SET', KEYS[1], string.format('onelock %s %.0f x %.0f %s', ARGV[1], n, now, ARGV[3]), 'PX', lease)
return {1, n, ARGV[1]}
