-- Notes that a node is there, and returns all others.
--
--   KEYS     the nodes: a hash of ID -> 'WHEN DIVISOR CLEAR', WHEN in microseconds since 1970, and
--            of '' -> 'SINCE LAG HELD WORD': when the hash was made, how long the server may go on
--            when another has taken its place, until when the server whose place it took may, and
--            the fence's word when the hash was last written; and the fence's word
--   ARGV     time (clock.lua), the node's id, its divisor (0: it has no share and is about to take
--            none), 1 or 0 for whether it has nothing to debit, time to live in microseconds, '' or
--            when the heartbeat becomes invalid (one that waited in a buffer is out of date); how
--            long this server may go on when another has taken its place (0: none can), and its
--            floor
--
-- A node that sent no heartbeat for its time to live has lapsed, and is new when it returns. It is
-- still listed for ten times as long, or for twice as long as another server may hear of it. The
-- hash expires when all nodes are gone.
--
-- If the fence's word has changed, another server has taken over (or this one lost its data), and
-- the old one may go on answering nodes for its LAG, but not beyond the floor.
--
-- Returns {microseconds, -1} if the heartbeat came too late; else {microseconds, 1 or 0 for whether
-- the node is new, age of the hash in microseconds, LAG, for how many microseconds another server
-- may still answer nodes, then for each other node: id, microseconds since its last heartbeat,
-- divisor, clear}.
local now, refused = read_clock(ARGV[1])
if not now then return refused end
local id, ttl = ARGV[2], tonumber(ARGV[5])
if ARGV[6] ~= '' and now > tonumber(ARGV[6]) then return {now, -1} end
local own_lag, floor = tonumber(ARGV[7]), tonumber(ARGV[8])
local before = redis.call('HGET', KEYS[1], '') or ''
local since, lag, held, by = string.match(before, '^(%d+) (%d+) (%d+) (.*)$')
since, lag, held = tonumber(since or now), tonumber(lag or 0), tonumber(held or 0)
if since > now then since = now end
if by ~= word then
  held = math.max(held, math.min(floor, now + math.max(lag, own_lag)))
  lag = own_lag
else
  lag = math.max(lag, own_lag)
end
local keep = math.max(10 * ttl, 2 * (ttl + lag))
local fresh = 1
local reply = {now, 0, now - since, lag, math.max(held - now, 0)}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at, divisor, clear = string.match(all[i + 1], '^(%d+) (%d+) ([01])$')
  -- A value of another form, or from the future (the clock was set back), counts as of now.
  local age = at and now - at or 0
  if age < 0 then age = 0 end
  if all[i] == id then
    if age < ttl then fresh = 0 end
  elseif all[i] == '' then -- no node
  elseif age >= keep then
    redis.call('HDEL', KEYS[1], all[i])
  else
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = age
    reply[#reply + 1] = tonumber(divisor or 0)
    reply[#reply + 1] = tonumber(clear or 0)
  end
end
reply[2] = fresh
local after = string.format('%.0f %.0f %.0f %s', since, lag, held, word)
if after ~= before then redis.call('HSET', KEYS[1], '', after) end
redis.call('HSET', KEYS[1], id, string.format('%.0f %s %s', now, ARGV[3], ARGV[4]))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.floor(keep / 1000)))
return reply
