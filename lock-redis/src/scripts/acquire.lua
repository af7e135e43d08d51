-- KEYS: E O W X, the counter, and the gate where there is one. ARGV: holder, mode, lease, waiter lease (ms, lock-delay included), queue, inbox, note.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); who holds is answered with its holder.
local holder, mode, queue = ARGV[1], ARGV[2], ARGV[5] == '1'
local lease, waiter_lease = tonumber(ARGV[3]), tonumber(ARGV[4])
at(1)
admitted(KEYS[6])
promoted(ARGV[9])

-- The first write of a join: where it is refused nothing has happened.
local function number()
  local n = call('INCR', KEYS[5])
  if ARGV[8] and n <= tonumber(ARGV[8]) then
    n = tonumber(ARGV[8]) + 1
    call('SET', KEYS[5], string.format('%.0f', n))
  end
  if n >= 9007199254740992 then error({err = 'ONELOCKLIMIT the counter of this bucket has no numbers left'}) end
  return n
end

local function entry(n)
  call('HSET', E, holder, string.format('%.0f %s %.0f %s %s', n, mode, now, ARGV[6], ARGV[7]))
end

if call('EXISTS', E, O, W, X) == 0 then
  local n, ends = number(), now + lease
  entry(n)
  call('ZADD', O, ends, holder)
  call('PEXPIREAT', E, ends + SLACK)
  call('PEXPIREAT', O, ends + SLACK)
  return {HELD, n, holder}
end

local waiters = settle() and call('ZCARD', W) or 0
local status, n, after = renew(holder, lease, waiter_lease)
if status ~= NONE then return {status, n, after} end

local held = call('ZCARD', O)
if held + waiters == 0 and call('EXISTS', E) == 1 then read(nil) end
local holds = waiters == 0 and (held == 0 or (mode ~= 'x' and fits(mode, held, held_mode())))
if not holds and not queue then return {NONE, 0, earliest()} end

n = number()
entry(n)
if holds then
  call('ZADD', O, now + lease, holder)
  keep(now + lease, held == 0)
  return {HELD, n, holder}
end
call('ZADD', W, n, holder)
call('ZADD', X, now + waiter_lease, holder)
keep(now + waiter_lease, waiters == 0)
return {WAITS, n, waiters == 0 and earliest() or FAILED}
