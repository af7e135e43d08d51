-- ARGV: a key that nobody uses. Tries every command of the plain verbs and answers those that the access list refuses; keys
-- are no part of it, because the user may be bound to those of the locks. What an old server does not have is answered
-- behind a `!`.
local missing = {}
for _, try in ipairs({
  {'TIME'}, {'SET', ARGV[1], '1', 'PX', 1}, {'GET', ARGV[1]}, {'INCR', ARGV[1]}, {'PEXPIRE', ARGV[1], 1}, {'PTTL', ARGV[1]},
  {'DEL', ARGV[1]}, {'PEXPIRETIME', ARGV[1]},
}) do
  local answer = redis.pcall(unpack(try))
  local text = type(answer) == 'table' and answer.err or ''
  if string.find(text, 'READONLY', 1, true) then error({err = text}) end
  local name = string.lower(try[1])
  if string.find(text, 'Unknown .*command called') then
    missing[#missing + 1] = '!' .. name
  elseif name ~= 'pexpiretime' and
    (string.find(text, "can't run this command", 1, true) or string.find(text, 'permissions to run', 1, true)) then
    -- No verb uses `pexpiretime` here: it only tells the age of the server.
    missing[#missing + 1] = name
  end
end
return missing
