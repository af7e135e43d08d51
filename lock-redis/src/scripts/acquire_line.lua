-- The rest of an acquire: there is a line.
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

local as_text
n, as_text = number()
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
