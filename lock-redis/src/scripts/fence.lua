-- Runs a command unless a later holder has written.
-- KEYS[1] is the watermark; the further ones are those of the command, for the server to know.
-- ARGV[1] is the token, ARGV[2] '1' to raise the watermark, ARGV[3..] the command.
-- Numbers are compared as text: those of Lua end at 2^53.
local token, newest = ARGV[1], redis.call('GET', KEYS[1])
-- What is no token was not written by a fence: it is left alone.
if newest and (not string.find(newest, '^%d+$') or #newest > #token or (#newest == #token and newest > token)) then
    return {0, newest}
end
if ARGV[2] == '1' then
    redis.call('SET', KEYS[1], token)
end
return {1, redis.call(unpack(ARGV, 3))}
