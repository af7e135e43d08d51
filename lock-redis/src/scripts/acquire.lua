-- KEYS: E O W X, the counter, and the gate where there is one.
-- ARGV: holder, mode, lease, waiter lease (ms, lock-delay included), queue, inbox, note, token epoch.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); who holds is answered with its holder.
local holder, mode = ARGV[1], ARGV[2]
local lease, waiter_lease = tonumber(ARGV[3]), tonumber(ARGV[4])
admitted(KEYS[6])
promoted(ARGV[10])

local function entry(n)
  call('HSET', E, holder, n .. ' ' .. mode .. ' ' .. NOW .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
end

-- Nobody else is in it.
local others = call('EXISTS', E, O, W, X)
if others == 0 then
  local n = number(KEYS[5], ARGV[9], ARGV[8])
  entry(text(n))
  call('ZADD', O, text(now + lease), holder)
  local gone = text(now + lease + SLACK)
  call('PEXPIREAT', E, gone)
  call('PEXPIREAT', O, gone)
  return {HELD, n, holder}
end

local queue = ARGV[5] == '1'
local waits, changed = settle(others == 4)
if waits and (changed or others ~= 4) then waits = call('ZCARD', W) > 0 end
local status, n, after = renew(holder, lease, waiter_lease)
if status ~= NONE then return {status, n, after} end

local holds, held = false, nil
if not waits then
  held = call('ZCARD', O)
  if held == 0 and call('EXISTS', E) == 1 then read(nil) end
  holds = held == 0 or (mode ~= 'x' and fits(mode, held, held_mode()))
end
if not holds and not queue then return {NONE, 0, earliest()} end

n = number(KEYS[5], ARGV[9], ARGV[8])
local as_text = text(n)
if holds then
  entry(as_text)
  call('ZADD', O, text(now + lease), holder)
  keep(now + lease, held == 0, true)
  return {HELD, n, holder}
end
-- First, because nothing has asked yet whether this key is ours.
call('ZADD', W, as_text, holder)
entry(as_text)
call('ZADD', X, text(now + waiter_lease), holder)
keep(now + waiter_lease, not waits, true)
return {WAITS, n, not waits and earliest() or FAILED}
