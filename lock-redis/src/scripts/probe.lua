-- KEYS: a hash H, a sorted set Z and a string S that nobody uses, where rights on keys count. ARGV: the commands of the verbs, what
-- stands for C in them, and for S without keys. Tries each. Answers those that the access list refuses, and behind a `!` those that
-- the server does not have: a clear error at connect and not half a verb later on.
local out, seen = {}, {}
local stands = {H = KEYS[1], Z = KEYS[2], S = KEYS[3] or ARGV[2], C = ARGV[2]}
for line in string.gmatch(ARGV[1], '[^,]+') do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = stands[word] or word end
  local answer = redis.pcall(unpack(words))
  local text = type(answer) == 'table' and answer.err or ''
  if string.find(text, 'READONLY', 1, true) then error({err = text}) end
  local name, unknown = words[1], string.find(text, 'Unknown .*command called')
  local denied = string.find(text, "can't run this command", 1, true) or string.find(text, 'permissions to run', 1, true)
  if KEYS[1] then
    denied = denied or string.find(text, "The user executing the script can't", 1, true) or string.find(text, 'permission')
  elseif name == 'pexpiretime' then
    denied = nil -- No plain verb uses it: it tells the age of the server.
  end
  if (unknown or denied) and not seen[name] then out[#out + 1] = (unknown and '!' or '') .. name end
  seen[name] = unknown or denied or seen[name]
end
return out
