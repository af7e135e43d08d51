-- Put before the verbs of a line. A name that one entry holds and nobody waits for is one string, E: "holder " and its text; its
-- end is the end of the lease. The first who joins it makes it a line of four keys, all of one hash slot:
--   E  hash  holder -> "number mode joined inbox note"
--   O  zset  the entries that hold, by the end of their lease (ms of the server's clock)
--   W  zset  the entries that wait, by number
--   X  zset  the entries that wait, by the end of their lease
-- Numbers stay below 2^53, where Lua's and the score's arithmetic is exact. Commands are given their numbers as texts: the server
-- writes a Lua number out with 17 digits, which takes it longer than most of these commands do.
local HELD, WAITS, NONE, FAILED = '1 ', '2 ', '0 0 ', '-1'
local SLACK = 250 -- how much longer than its leases a line's keys live, so that not every renewal moves four expiries
local E, O, W, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local NOW = millis()
local now = tonumber(NOW)

local function at(first)
  E, O, W, X = KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
end

local function read(entry)
  local number, mode, joined, inbox
  if entry then number, mode, joined, inbox = string.match(entry, '^(%d+) ([xsp][%dw]*) (%d+) (%S+) ') end
  if not number then error({err = 'ONELOCKFOREIGN the keys of this line were not written by onelock, or only in part'}) end
  return number, mode, inbox
end

-- Whose the name is, where it is no line: its holder, its number and its text.
local function single()
  if call('EXISTS', O, W, X) > 0 then return nil end
  local alone = call('GET', E)
  if not alone then return nil end
  local holder, entry = string.match(alone, '^(%x+) (.*)$')
  return holder, read(entry), entry
end

-- What the rule needs to know of `held` holders: the kind of all of them, the weight of permits and the smallest of their
-- limits. Holders are compatible, so one tells the kind; permits are read, at most as many as `limit`, the asker's.
local none = {kind = nil, weight = 0, limit = math.huge}
local function permit(mode)
  local limit, weight = string.match(mode, '^p(%d+)w?(%d*)$')
  return tonumber(limit), tonumber(weight) or 1
end

local function add(holders, mode)
  local limit, weight = permit(mode)
  if not limit then return {kind = mode} end
  return {kind = 'p', weight = holders.weight + weight, limit = math.min(holders.limit, limit)}
end

local function held_by(mode, held)
  if held == 0 then return none end
  local limit = permit(mode)
  local _, first = read(call('HGET', E, call('ZRANGE', O, '0', '0')[1]))
  -- Each weighs at least 1.
  if not limit or not permit(first) or held >= limit then return {kind = string.sub(first, 1, 1), weight = held, limit = held} end
  local holders = none
  for _, holder in ipairs(call('ZRANGE', O, '0', '-1')) do
    local _, theirs = read(call('HGET', E, holder))
    holders = add(holders, theirs)
  end
  return holders
end

-- Whether an entry of this mode holds behind these.
local function fits(mode, holders)
  if not holders.kind then return true end
  local limit, weight = permit(mode)
  if not limit then return mode == 's' and holders.kind == 's' end
  return holders.kind == 'p' and holders.weight + weight <= math.min(holders.limit, limit)
end

-- Makes the line's keys live as long as a lease that ends at `ends`; `fresh` when a key may have just been made. All four get
-- the same absolute end, so a clock that steps leaves none without the others. The end they have is read as a moment, not as
-- a time to live: that is rounded and counts from another `now`, and added to ours it would move the end a little with each
-- join.
-- A renewal writes in any case, and before its ZADD, what needs no memory: once a script has written, a server that is full
-- lets it finish, so what is held can be kept. A join has done so (`joins`).
local function keep(ends, fresh, joins)
  local last = call('PEXPIRETIME', E)
  -- The line is new, or somebody has taken its end off.
  for _, zset in ipairs(last < 0 and {O, X} or {}) do
    ends = math.max(ends, tonumber(call('ZRANGE', zset, '-1', '-1', 'WITHSCORES')[2] or 0))
  end
  if fresh or last < ends then
    local at = text(math.max(last, ends + SLACK))
    for _, key in ipairs({E, O, W, X}) do call('PEXPIREAT', key, at) end
  elseif not joins then
    call('HDEL', E, '')
  end
end

local function sweep(zset)
  local dropped = false
  repeat
    local dead = call('ZRANGEBYSCORE', zset, '-inf', NOW, 'LIMIT', '0', '500')
    if #dead > 0 then
      call('HDEL', E, unpack(dead))
      call('ZREM', zset, unpack(dead))
      if zset == X then call('ZREM', W, unpack(dead)) end
      dropped = true
    end
  until #dead < 500
  return dropped
end

-- Takes an entry out that does not hold.
local function drop(holder)
  call('HDEL', E, holder)
  call('ZREM', W, holder)
  call('ZREM', X, holder)
end

-- Lets the head of the line hold as long as it is compatible, and tells it. `leaving` is the only holder, which the caller
-- takes out afterwards: so O is never gone in between, and keeps its expiry.
local function promote(leaving)
  local held = leaving and 0 or call('ZCARD', O)
  local fresh, holders = held == 0 and not leaving, nil
  -- Nobody holds beside an exclusive entry, so none is looked for.
  while not holders or holders.kind ~= 'x' do
    local head = call('ZRANGE', W, '0', '0')[1]
    if not head then break end
    local entry, ends = call('HGET', E, head), call('ZSCORE', X, head)
    if not entry or not ends then
      -- A key of the line was evicted, or deleted by hand.
      drop(head)
    elseif tonumber(ends) <= now then
      sweep(X)
    else
      local number, mode, inbox = read(entry)
      holders = holders or held_by(mode, held)
      if not fits(mode, holders) then break end
      -- Where a right was taken away nothing is written, and who waits keeps its place. What needs no memory comes first, as in
      -- `keep`.
      call('ZREM', X, '')
      call('ZADD', O, ends, head)
      call('ZREM', W, head)
      call('ZREM', X, head)
      held, holders = held + 1, add(holders, mode)
      -- A message that cannot be sent must not stop the line: the waiter learns of its grant from its next renewal.
      redis.pcall('PUBLISH', inbox, head .. ' ' .. number)
    end
  end
  if fresh and held > 0 then keep(now, true) end
end

-- Drops what has expired and promotes whoever holds then: the start of most verbs. Whether anybody may wait (`waits`: it is
-- known that somebody does), and whether anything has changed.
local function settle(waits)
  local dropped = sweep(O)
  if not waits and call('EXISTS', W, X) == 0 then return false, dropped end
  dropped = sweep(X) or dropped
  if dropped then promote() end
  return true, dropped
end

-- When the earliest lease of a holder ends, from now.
local function earliest()
  local first = call('ZRANGE', O, '0', '0', 'WITHSCORES')
  return first[2] and text(math.max(tonumber(first[2]) - now, 0)) or FAILED
end

-- The step of a renewal in a settled line: status, number, and for a waiter the time until the head should ask again.
-- A grant names its holder instead: an answer to another question, read by a connection out of step, is none.
local function renew(holder, lease, waiter_lease)
  local entry = call('HGET', E, holder)
  if not entry then return NONE .. FAILED end
  local number = read(entry)
  local status, zset, after = HELD, O, holder
  local ends = call('ZSCORE', O, holder)
  if not ends then
    ends = call('ZSCORE', W, holder) and call('ZSCORE', X, holder)
    if not ends then
      drop(holder)
      return NONE .. FAILED
    end
    status, zset, after = WAITS, X, call('ZRANGE', W, '0', '0')[1] == holder and earliest()
    -- Nobody holds: O was evicted, or deleted by hand.
    if after == FAILED then
      promote()
      return renew(holder, lease, waiter_lease)
    end
    after, lease = after or FAILED, waiter_lease
  end
  local later = now + lease
  if later > tonumber(ends) then
    keep(later, false)
    call('ZADD', zset, text(later), holder)
  else
    lengthen(E, 0)
  end
  return status .. number .. ' ' .. after
end
