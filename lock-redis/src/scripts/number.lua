-- The numbers of joins, for both layouts.

-- Fails when the server was promoted since the client learned its epoch: it has another replication id then.
local function promoted(id)
  if id and not string.find(call('INFO', 'replication'), 'master_replid:' .. id, 1, true) then
    error({err = 'ONELOCKEPOCH the server was promoted, or may not say so'})
  end
end

-- A counter that is missing (FLUSHALL, an empty server in the place of the old one) starts here: at the clock, in units of
-- 16 us so that 48 bits are enough. That is above all it gave before, because no server serves a bucket that often.
local function clock()
  local time = call('TIME')
  return math.floor((time[1] * 1000000 + time[2]) / 16)
end

-- The number after `n`, above `floor`, where those of the failover's epoch start.
local function above(n, floor)
  floor = floor and tonumber(floor) or n == 0 and clock() or 0
  n = math.max(n, floor) + 1
  if n >= 9007199254740992 then error({err = 'ONELOCKLIMIT the counter of this bucket has no numbers left'}) end
  return n
end

-- The next number of a counter, as text. It is the first write: where that is refused nothing has happened. A token epoch smaller
-- than the counter's is refused, because tokens would go back.
local function number(key, floor, epoch)
  local n = epoch == '0' and redis.pcall('INCR', key)
  if type(n) == 'number' then
    local next = above(n - 1, floor)
    local as_text = text(next)
    local set = next ~= n and redis.pcall('SET', key, as_text)
    if set and set.err then
      -- A right was taken away. A new counter must not begin at 1.
      if n == 1 then call('DEL', key) end
      error(set)
    end
    return as_text
  end
  local last, largest = counter(key)
  if largest == '' and epoch == '0' then error(n) end
  largest = tonumber(string.sub(largest, 1, -2)) or 0
  if tonumber(epoch) < largest then error({err = 'ONELOCKTOKENEPOCH ' .. epoch .. ' ' .. largest}) end
  n = text(above(last, floor))
  call('SET', key, epoch .. ':' .. n)
  return n
end
