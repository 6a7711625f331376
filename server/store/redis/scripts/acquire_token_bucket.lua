-- Takes permits from one token bucket without open receipts, for an ordered list of callers.
--
-- The bucket's state is its TAT, when it is full again (server/algorithm/token_bucket.h), as
-- a pair: whole microseconds, and parts of one microsecond, of which there are `base`. Neither
-- passes 2^53, so doubles hold them exactly; everything here is addition and comparison. Costs are
-- products, which the caller has computed.
--
--   KEYS[1]  the bucket
--   ARGV[1]  parameters of the limit, as one word
--   ARGV[2]  the writer, as one word
--   ARGV[3]  numbers, packed as struct.pack('<d') does, since one word more would cost more than
--            taking all of these apart (docs/adr/0090):
--     base
--     the floor: full at the earliest then, whatever the state is (2 numbers); 0 0: none. If the
--     first is negative, only if there is no bucket
--     the time, of a test (microseconds, nanoseconds, 0); or -1 - CORRECTION, LATEST or 0, LEAST: it
--     is the server's (clock.lua)
--     then for each run of callers that want the same:
--       cost (2 numbers), room (2 numbers), number of callers; negative: they would wait, and no
--       caller from the first denied one of them on is decided here
--   A caller is granted iff the bucket, cost added, is full again at most `room` from now. The
--   room is burst + min(cost, debt): with debt, all that was owed must be paid before.
--
-- Returns, packed alike: microseconds, nanoseconds, lacking (2 numbers), granted callers of each
-- run; `lacking` is what the bucket lacked of full before the first caller. Callers after a denied
-- caller of the same run would be denied, too, so the granted ones are the first of a run.
-- Returns {-1} if the bucket has other parameters or open receipts (see acquire.lua), {-2} if it
-- has bookings (exchange.lua).
local parameters, numbers = ARGV[1], ARGV[3]
local base, full_u, full_t, now_u, now_t, least_u, next_run = struct.unpack('<dddddd', numbers)
local ttl_ms = 2
if now_u < 0 then
  local time = redis.call('TIME')
  local server_u = time[1] * 1000000 + time[2]
  if now_t > 0 and (server_u > now_t or server_u < least_u) then
    return redis.error_reply('CLOCK was set')
  end
  now_u, now_t = server_u + now_u + 1, 0
else
  now_t = now_t * (base / 1000)
  ttl_ms = 3600002
end

-- The part of the state before the TAT.
local head
local value = redis.call('GET', KEYS[1])
if value then
  local size = #parameters
  local at, u, t = string.match(value, '^ %S+ ()(%d+) (%d+) 0$', size + 1)
  if not at or string.sub(value, 1, size) ~= parameters then
    return {string.find(value, '^%S+ %S+ @') and -2 or -1}
  end
  head = string.sub(value, 1, at - 1)
  u, t = tonumber(u), tonumber(t)
  if full_u < u or (full_u == u and full_t < t) then full_u, full_t = u, t end
else
  if full_u < 0 then full_u = -full_u end
  head = parameters .. ' ' .. ARGV[2] .. ' '
end
if full_u < now_u or (full_u == now_u and full_t < now_t) then
  full_u, full_t = now_u, now_t
end

local lack_u, lack_t = full_u - now_u, full_t - now_t
if lack_t < 0 then lack_u, lack_t = lack_u - 1, lack_t + base end
local reply
local taken = false
local last = #numbers
while next_run <= last do
  local cost_u, cost_t, until_u, until_t, callers
  cost_u, cost_t, until_u, until_t, callers, next_run = struct.unpack('<ddddd', numbers, next_run)
  until_u, until_t = now_u + until_u, now_t + until_t
  if until_t >= base then until_u, until_t = until_u + 1, until_t - base end
  local wait = callers < 0
  if wait then callers = -callers end
  local granted = 0
  local u, t = full_u + cost_u, full_t + cost_t
  if t >= base then u, t = u + 1, t - base end
  if u < until_u or (u == until_u and t <= until_t) then
    if callers == 1 then
      full_u, full_t = u, t
      granted = 1
    else
      -- Costs of 1, 2, 4, ... callers, as long as that many fit; then the largest first.
      local blocks = {}
      local block = 1
      while block <= callers do
        u, t = full_u + cost_u, full_t + cost_t
        if t >= base then u, t = u + 1, t - base end
        if u > until_u or (u == until_u and t > until_t) then break end
        blocks[#blocks + 1] = cost_u
        blocks[#blocks + 1] = cost_t
        block = block * 2
        cost_u, cost_t = cost_u + cost_u, cost_t + cost_t
        if cost_t >= base then cost_u, cost_t = cost_u + 1, cost_t - base end
      end
      for b = #blocks - 1, 1, -2 do
        block = block / 2
        if granted + block <= callers then
          u, t = full_u + blocks[b], full_t + blocks[b + 1]
          if t >= base then u, t = u + 1, t - base end
          if u < until_u or (u == until_u and t <= until_t) then
            full_u, full_t = u, t
            granted = granted + block
          end
        end
      end
    end
    taken = true
  end
  if reply then
    reply = reply .. struct.pack('<d', granted)
  else
    reply = struct.pack('<ddddd', now_u, now_t * 1000 / base, lack_u, lack_t, granted)
  end
  if wait and granted < callers then break end
end

if taken then
  local u = full_u - now_u
  if full_t < now_t then u = u - 1 end
  u = u / 1000 + ttl_ms
  -- %.0f prints every number that is whole and takes twice the time of %d, which has 31 bits where
  -- Redis was built for 32.
  local low = full_u % 100000000
  redis.call('SET', KEYS[1],
    string.format(base <= 1000000000 and '%s%d%08d %d 0' or '%s%d%08d %.0f 0', head,
      (full_u - low) / 100000000, low, full_t),
    'PX', string.format(u < 2147483647 and '%d' or '%.0f', u))
end
return reply
