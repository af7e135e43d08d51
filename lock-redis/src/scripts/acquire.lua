-- KEYS: E O W X, the counter, and the gate where there is one. ARGV: holder, mode, lease, waiter lease (ms, lock-delay included), queue, inbox, note.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); who holds is answered with its holder.
-- Here what a lock needs that nobody else is in; acquire_line.lua is the rest.
local holder, mode = ARGV[1], ARGV[2]
local lease, waiter_lease = tonumber(ARGV[3]), tonumber(ARGV[4])
admitted(KEYS[6])
promoted(ARGV[9])

-- The first write of a join: where it is refused nothing has happened. The number, and as a text.
local function number()
  local n = call('INCR', KEYS[5])
  if ARGV[8] and n <= tonumber(ARGV[8]) then
    n = tonumber(ARGV[8]) + 1
    call('SET', KEYS[5], text(n))
  end
  if n >= 9007199254740992 then error({err = 'ONELOCKLIMIT the counter of this bucket has no numbers left'}) end
  return n, text(n)
end

local function entry(n)
  call('HSET', E, holder, n .. ' ' .. mode .. ' ' .. NOW .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
end

local others = call('EXISTS', E, O, W, X)
if others == 0 then
  local n, as_text = number()
  entry(as_text)
  call('ZADD', O, text(now + lease), holder)
  local gone = text(now + lease + SLACK)
  call('PEXPIREAT', E, gone)
  call('PEXPIREAT', O, gone)
  return {HELD, n, holder}
end

