-- Put before every verb.
local call = redis.call

-- Not by `%d`, which is a C long: on a 32-bit server a time in milliseconds overflows it.
local function text(n)
  return string.format('%.0f', n)
end

-- The server's time in milliseconds, as text: put together as text, because a number takes the server longer to write.
local function millis()
  local time = call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end

-- Moves the end of a key, only ever to a later one. With 0 the end stays as it is, and is written all the same if there is one:
-- `WAIT` waits for the last write of its connection.
local function lengthen(key, ends)
  ends = math.max(ends, call('PEXPIRETIME', key))
  if ends > 0 then call('PEXPIREAT', key, text(ends)) end
end

-- The last number of a counter, and what stands before it: the largest token epoch that has joined and a colon, or nothing.
local function counter(key)
  local value = call('GET', key) or '0'
  local epoch = string.match(value, '^%d+:') or ''
  local last = tonumber(string.sub(value, #epoch + 1))
  if not last then error({err = 'ONELOCKFOREIGN the counter ' .. key .. ' is not a number'}) end
  return last, epoch
end

-- Fails where this start of the server has no vote; `gate` is nil where the client asks for none. Before any write.
local function admitted(gate)
  if gate and string.match(call('INFO', 'server'), 'run_id:(%x+)') ~= call('GET', gate) then
    error({err = 'ONELOCKGATE the server has restarted, and may have forgotten what it gave: no vote until its gate is opened'})
  end
end
