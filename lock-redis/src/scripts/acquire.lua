-- KEYS: E O W X, the counter, and the gate where there is one.
-- ARGV: holder, lease, waiter lease (ms, lock-delay included), mode, queue, inbox and note, token epoch.
-- Behind them, where a replica can be promoted: where the numbers of this epoch start, and the server's replication id.
-- Answers status, number, time until asking again may help (-1: unknown); who holds is answered with its holder.
--@shared
--@number
local holder, mode = ARGV[1], ARGV[4]
admitted(KEYS[6])
promoted(ARGV[9])

-- Nobody else is in it: one key, and none of what a line needs.
local function take()
  local n = number(KEYS[5], ARGV[8], ARGV[7])
  call('SET', KEYS[1], holder .. ' ' .. n .. ' ' .. mode .. ' ' .. millis() .. ' ' .. ARGV[6], 'PX', ARGV[2])
  return '1 ' .. n .. ' ' .. holder
end
local others = call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if others == 0 then return take() end
--@line
local lease, waiter_lease, queue = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5] == '1'
local waits, holds, held, n = false, false, 1, nil
local alone, number_of, entry = single()
if alone == holder then
  lengthen(E, now + lease)
  return HELD .. number_of .. ' ' .. holder
elseif alone then
  local ends = call('PEXPIRETIME', E)
  -- Somebody has taken its end off: it is held until it is released.
  if ends < 0 then return NONE .. FAILED end
  -- Its lease ends in this millisecond, and the server drops the key in the next.
  if ends <= now then return take() end
  holds = fits(mode, add(none, string.match(entry, '^%d+ (%S+)')))
  if not holds and not queue then return NONE .. text(ends - now) end
  -- A line from now on. The number is the first write here, too: a server that is full refuses it.
  n = number(KEYS[5], ARGV[8], ARGV[7])
  local function put_back() call('SET', E, alone .. ' ' .. entry, 'PXAT', text(ends)) end
  -- Tried before there is anything to undo.
  put_back()
  call('DEL', E)
  local made, failed = pcall(function()
    call('HSET', E, alone, entry)
    call('ZADD', O, text(ends), alone)
    -- An end that has come meanwhile would drop the keys at once.
    for _, key in ipairs({E, O}) do call('PEXPIREAT', key, text(ends + SLACK)) end
  end)
  if not made then
    -- A right was taken away: it costs the holder nothing.
    call('DEL', E, O)
    put_back()
    error({err = type(failed) == 'table' and failed.err or failed})
  end
else
  local changed
  waits, changed = settle(others == 4)
  -- Nobody holds: O was evicted, or deleted by hand. Who heads the line may be nobody any more.
  if waits and others ~= 4 and call('EXISTS', O) == 0 then promote() end
  if waits and (changed or others ~= 4) then waits = call('ZCARD', W) > 0 end
  local standing = renew(holder, lease, waiter_lease)
  if standing ~= NONE .. FAILED then return standing end
  if not waits then
    held = call('ZCARD', O)
    if held == 0 and call('EXISTS', E) == 1 then read(nil) end
    holds = held == 0 or (mode ~= 'x' and fits(mode, held_by(mode, held)))
  end
  if not holds and not queue then return NONE .. earliest() end
  n = number(KEYS[5], ARGV[8], ARGV[7])
end

-- A waiter first into W, because nothing has asked yet whether this key is ours.
if not holds then call('ZADD', W, n, holder) end
call('HSET', E, holder, n .. ' ' .. mode .. ' ' .. NOW .. ' ' .. ARGV[6])
if holds then
  call('ZADD', O, text(now + lease), holder)
  keep(now + lease, held == 0 or alone, true)
  return HELD .. n .. ' ' .. holder
end
call('ZADD', X, text(now + waiter_lease), holder)
keep(now + waiter_lease, not waits, true)
return WAITS .. n .. ' ' .. (not waits and earliest() or FAILED)
