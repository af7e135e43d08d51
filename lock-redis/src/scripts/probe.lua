-- KEYS: a hash, a sorted set and a string that nobody uses. ARGV: this client's inbox, and whether it is a cluster.
-- Tries every command the verbs use. Answers those that the access list refuses, and behind a `!` those that the server
-- does not have, so that a missing right or an old server is a clear error at connect and not half a verb later on.
local missing, seen = {}, {}
local function try(...)
  local answer = redis.pcall(...)
  local text = type(answer) == 'table' and answer.err
  if not text then return end
  if string.find(text, 'READONLY', 1, true) then error({err = text}) end
  local denied = string.find(text, "The user executing the script can't", 1, true) or string.find(text, 'NOPERM', 1, true)
    or string.find(text, 'permission', 1, true)
  local name = string.lower((...))
  if string.find(text, 'Unknown .*command called') then
    denied, name = true, '!' .. name
  end
  if denied and not seen[name] then
    seen[name] = true
    missing[#missing + 1] = name
  end
end
local h, z, s = KEYS[1], KEYS[2], KEYS[3]
try('TIME')
try('EXISTS', h, z, s)
try('INCR', s)
try('SET', s, '1', 'PX', 1)
try('GET', s)
try('PEXPIREAT', s, 1)
try('PEXPIRETIME', h)
try('HSET', h, 'a', '1')
try('HGET', h, 'a')
try('HEXISTS', h, 'a')
try('PEXPIREAT', h, 1)
try('HDEL', h, 'a')
try('ZADD', z, 1, 'a')
try('ZCARD', z)
try('ZSCORE', z, 'a')
try('ZRANGE', z, 0, 0)
try('ZRANGEBYSCORE', z, 0, 0)
try('PEXPIREAT', z, 1)
try('ZREM', z, 'a')
if ARGV[2] == '1' then try('HLEN', h) end
try('PUBLISH', ARGV[1], '')
return missing
