-- Put before every verb. A line is four keys, all of one hash slot:
--   E  hash  holder -> "number mode joined inbox note"
--   O  zset  the entries that hold, by the end of their lease (ms of the server's clock)
--   W  zset  the entries that wait, by number
--   X  zset  the entries that wait, by the end of their lease
-- An uncontended lock is E and O alone. Numbers stay below 2^53, where Lua's and the score's arithmetic is exact.
-- Commands are given their numbers as texts: the server writes a Lua number out with 17 digits, which takes it longer
-- than most of these commands do.
local call = redis.call
local HELD, WAITS, NONE, FAILED = 1, 2, 0, -1
local SLACK = 250 -- how much longer than its leases a line's keys live, so that not every renewal moves four expiries
local E, O, W, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function text(n)
  return string.format('%d', n)
end

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local NOW = text(now)

