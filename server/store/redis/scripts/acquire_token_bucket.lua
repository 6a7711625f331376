-- Takes permits from one token bucket without open receipts, for an ordered list of callers.
--
-- The bucket's state is the moment at which it is full again (server/algorithm/token_bucket.h), as
-- a pair: whole microseconds, and parts of one microsecond, of which there are `base`. Neither
-- passes 2^53, so doubles hold them exactly; everything here is addition and comparison. Costs are
-- products, which the caller has computed.
--
--   KEYS[1]  the bucket
--   ARGV[1]  '': the time is the server's. 'MICROSECONDS NANOSECONDS': of a test
--   ARGV[2]  figures of the limit, as one word
--   ARGV[3]  who writes, as one word
--   ARGV[4]  base
--   ARGV[5]  and [6]: full at the earliest then, whatever the state says; 0 0 if nothing was lost
--   then for each run of callers who ask for the same:
--     cost (2 numbers), room (2 numbers), how many callers; negative: of such as would wait, so
--     that nobody behind the first of them who is denied is decided here
--   A caller is granted iff the bucket, cost added, is full again at most `room` from now. The
--   room is burst + min(cost, debt): with debt, all that was owed must be paid before.
--
-- Returns {microseconds, nanoseconds, lacking (2 numbers), granted callers of each run}; `lacking`
-- is what the bucket lacked of full before the first caller. Who follows a denied caller of the
-- same run would be denied too, so the granted ones are a run's first.
-- Returns {-1} when the bucket is of other figures or has open receipts (see acquire.lua), {-2} when
-- something is booked in it (exchange.lua).
local figures, writer, base = ARGV[2], ARGV[3], tonumber(ARGV[4])
local now_u, now_t
local extra_ttl = 0
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_u, now_t = time[1] * 1000000 + time[2], 0
else
  local u, n = string.match(ARGV[1], '^(%d+) (%d+)$')
  now_u, now_t = tonumber(u), n * (base / 1000)
  extra_ttl = 3600000
end

local full_u, full_t = tonumber(ARGV[5]), tonumber(ARGV[6])
local value = redis.call('GET', KEYS[1])
if value then
  local stored, by, u, t, receipts =
    string.match(value, '^(%S+) (%S+) (%d+) (%d+) ([01])$')
  if stored ~= figures or receipts ~= '0' then
    return {string.find(value, '^%S+ %S+ @') and -2 or -1}
  end
  writer = by
  u, t = tonumber(u), tonumber(t)
  if full_u < u or (full_u == u and full_t < t) then full_u, full_t = u, t end
end
if full_u < now_u or (full_u == now_u and full_t < now_t) then
  full_u, full_t = now_u, now_t
end

local function lacking()
  if full_t >= now_t then return full_u - now_u, full_t - now_t end
  return full_u - now_u - 1, full_t - now_t + base
end

local lack_u, lack_t = lacking()
local reply = {now_u, now_t * 1000 / base, lack_u, lack_t}
local taken = false
for i = 7, #ARGV, 5 do
  local cost_u, cost_t = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local until_u, until_t = now_u + ARGV[i + 2], now_t + ARGV[i + 3]
  if until_t >= base then until_u, until_t = until_u + 1, until_t - base end
  local callers = tonumber(ARGV[i + 4])
  local wait = callers < 0
  if wait then callers = -callers end
  -- Costs of 1, 2, 4, ... callers, as long as that many fit; then the largest first.
  local blocks = {}
  local block = 1
  while block <= callers do
    local u, t = full_u + cost_u, full_t + cost_t
    if t >= base then u, t = u + 1, t - base end
    if u > until_u or (u == until_u and t > until_t) then break end
    blocks[#blocks + 1] = cost_u
    blocks[#blocks + 1] = cost_t
    block = block * 2
    cost_u, cost_t = cost_u + cost_u, cost_t + cost_t
    if cost_t >= base then cost_u, cost_t = cost_u + 1, cost_t - base end
  end
  local granted = 0
  for b = #blocks - 1, 1, -2 do
    block = block / 2
    if granted + block <= callers then
      local u, t = full_u + blocks[b], full_t + blocks[b + 1]
      if t >= base then u, t = u + 1, t - base end
      if u < until_u or (u == until_u and t <= until_t) then
        full_u, full_t = u, t
        granted = granted + block
      end
    end
  end
  if granted > 0 then taken = true end
  reply[#reply + 1] = granted
  if wait and granted < callers then break end
end

if taken then
  local u = lacking()
  redis.call('SET', KEYS[1],
    string.format('%s %s %.0f %.0f 0', figures, writer, full_u, full_t),
    'PX', string.format('%.0f', math.floor(u / 1000) + 2 + extra_ttl))
end
return reply
