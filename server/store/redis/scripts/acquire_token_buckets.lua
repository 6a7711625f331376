-- Takes permits from token buckets without open receipts, of each for an ordered list of callers.
--
-- A bucket's state is its TAT, when it is full again (server/algorithm/token_bucket.h), as a pair:
-- whole microseconds, and parts of one microsecond, of which there are `base`. Neither passes 2^53,
-- so doubles hold them exactly; everything here is addition and comparison. Costs are products,
-- which the caller has computed.
--
--   KEYS     the buckets, each once; none if they are in different slots of a Cluster, which keys
--            may not be. Then they are the words after ARGV[1]
--   ARGV[1]  numbers, packed as struct.pack('<d') does, since one word more would cost more than
--            taking all of these apart (docs/adr/0090):
--     the time, of a test (microseconds, nanoseconds, 0); or -1 - CORRECTION, LATEST or 0, LEAST: it
--     is the server's (clock.lua)
--     1: the buckets are read by MGET; 0: by GET, since the user may not use MGET; -COUNT: by GET,
--     since they are not KEYS
--     1: SETRANGE may be used; 0: the user may not use it
--     then for each bucket
--       the place in ARGV of its limit's words
--       base
--       the floor: full at the earliest then, whatever the state is (2 numbers); 0 0: none. If the
--       first is negative, only if there is no bucket
--       number of runs, of callers that want the same, then for each run:
--         cost (2 numbers), room (2 numbers), number of callers; negative: they would wait, and no
--         caller of the bucket from the first denied one of them on is decided here
--   Then     for each limit: its parameters, a space, the writer, a space, as a bucket that this
--            writer writes begins
--   A caller is granted iff the bucket, cost added, is full again at most `room` from now. The
--   room is burst + min(cost, debt): with debt, all that was owed must be paid before.
--
-- Returns, packed alike: microseconds, nanoseconds, then for each bucket lacking (2 numbers) and the
-- granted callers of each run; `lacking` is what the bucket lacked of full before the first caller.
-- Callers after a denied caller of the same run would be denied, too, so the granted ones are the
-- first of a run. Of a bucket that is not decided only one number: -1 if it has other parameters,
-- open receipts, or is not ours (see acquire.lua), -2 if it has bookings (exchange.lua), -3 if it is
-- not among KEYS and its slot is at another server, or on its way.
--
-- A state that is written here ends with the time at which its key expires, in seconds of the
-- server's clock, and the end of the fence's word. That time is later than need be, by some seconds
-- and half of the time until the bucket is full, but at most by an hour. So the next writings,
-- which mostly change nothing but the TAT, can leave the rest and the time as they are. A slot of a
-- Cluster may have moved since, to a server with another clock: that one has another fence. Other
-- scripts write states without these two words.
--
-- Whatever refuses the whole script does so before its first writing.
local call, find, match, sub = redis.call, string.find, string.match, string.sub
local format, unpack_numbers, min = string.format, struct.unpack, math.min
local numbers = ARGV[1]
-- With those of the first bucket.
local now_u, now_n, least_u, together, may_set_range, limit, base, full_u, full_t, runs, cost_u,
  cost_t, until_u, until_t, callers, at = unpack_numbers('<ddddddddddddddd', numbers)
-- What the server's clock is ahead of the time by. Keys of a test never expire.
local ahead_u, test_s = 0, 0
if now_u < 0 then
  local time = call('TIME')
  local server_u = time[1] * 1000000 + time[2]
  if now_n > 0 and (server_u > now_n or server_u < least_u) then
    return redis.error_reply('CLOCK was set')
  end
  ahead_u = -1 - now_u
  now_u, now_n = server_u - ahead_u, 0
else
  test_s = 4000000000
end

-- Prints a number that is whole. %.0f takes twice the time of %d, which has 31 bits where Redis was
-- built for 32.
local whole = format('%d', 4503599627370496) == '4503599627370496' and '%d' or '%.0f'
-- For one base. Parts have leading zeros, so that the TAT keeps its length.
local tat_base, tat_format, whole_tat_format
local state_format, expiry_format = '%s%s 0 ' .. whole .. ' %s', whole .. '000'
local fence_tag = sub(word, -6)
-- By the part of a state before its TAT: the TAT's offset, as text.
local offsets = {}
-- By the place of a limit's words: its parameters, and a space.
local parameters_of = {}

local keys, count = KEYS, #KEYS - 1
if together < 0 then keys, count = {unpack(ARGV, 2, 1 - together)}, -together end
local values
if together == 1 and count > 1 then values = call('MGET', unpack(KEYS, 1, count)) end

-- Returns how many callers fit, of so many that want the same, and the TAT then. One fits.
local function take_many(callers, full_u, full_t, cost_u, cost_t, until_u, until_t, base)
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
  return granted, full_u, full_t
end

-- As long as that of one bucket with one run, so that it need not grow.
local reply = {now_u, now_n, 0, 0, 0}
local last = 2
for b = 1, count do
  if b > 1 then
    limit, base, full_u, full_t, runs, cost_u, cost_t, until_u, until_t, callers, at =
      unpack_numbers('<dddddddddd', numbers, at)
  end
  local next_bucket, first = at + 40 * (runs - 1), last + 1
  local value
  local refusal = -1
  if values then
    value = values[b]
  else
    value = redis.pcall('GET', keys[b])
    if type(value) == 'table' then
      if together < 0 and find(value.err, 'non local key', 1, true) then refusal = -3 end
      value = ''
    end
  end

  -- The part of the state before the TAT.
  local head, u, t, expires, expires_by = ARGV[limit], nil, nil, nil, nil
  if not value then
    if full_u < 0 then full_u = -full_u end
  elseif find(value, head, 1, true) == 1 then
    u, t, expires, expires_by = match(value, '^(%d+) (%d+) 0 ?(%d*) ?(%S*)$', #head + 1)
  else
    -- Perhaps another writer's.
    local parameters = parameters_of[limit]
    if not parameters then
      parameters = match(head, '^%S+ ')
      parameters_of[limit] = parameters
    end
    if find(value, parameters, 1, true) == 1 then
      local from
      from, u, t, expires, expires_by =
        match(value, '^%S+ ()(%d+) (%d+) 0 ?(%d*) ?(%S*)$', #parameters + 1)
      head = from and sub(value, 1, from - 1)
    end
  end

  if value and not u then
    last = first
    reply[last] = find(value, '^%S+ %S+ @') and -2 or refusal
  else
    local tat_length
    if u then
      tat_length = #u + 1 + #t
      -- Takes less than tonumber.
      u, t = u + 0, t + 0
      if full_u < u or (full_u == u and full_t < t) then full_u, full_t = u, t end
    end
    local now_t = now_n * (base / 1000)
    if full_u < now_u or (full_u == now_u and full_t < now_t) then
      full_u, full_t = now_u, now_t
    end
    local lack_u, lack_t = full_u - now_u, full_t - now_t
    if lack_t < 0 then lack_u, lack_t = lack_u - 1, lack_t + base end
    reply[first], reply[first + 1] = lack_u, lack_t
    last = first + 1
    local taken = false
    while true do
      until_u, until_t = now_u + until_u, now_t + until_t
      if until_t >= base then until_u, until_t = until_u + 1, until_t - base end
      local wait = callers < 0
      if wait then callers = -callers end
      local granted = 0
      u, t = full_u + cost_u, full_t + cost_t
      if t >= base then u, t = u + 1, t - base end
      if u < until_u or (u == until_u and t <= until_t) then
        taken = true
        granted = 1
        if callers > 1 then
          granted, u, t = take_many(callers, full_u, full_t, cost_u, cost_t, until_u, until_t, base)
        end
        full_u, full_t = u, t
      end
      last = last + 1
      reply[last] = granted
      runs = runs - 1
      if runs == 0 or (wait and granted < callers) then break end
      cost_u, cost_t, until_u, until_t, callers, at = unpack_numbers('<ddddd', numbers, at)
    end
    -- MGET answers a key that is not a string as if it were missing.
    local foreign = false
    if taken then
      if base ~= tat_base then
        local digits = #format(whole, base - 1)
        tat_base, tat_format = base, whole .. ' %0' .. digits .. sub(whole, 2)
        whole_tat_format = whole .. ' ' .. string.rep('0', digits)
      end
      local tat = full_t == 0 and format(whole_tat_format, full_u)
        or format(tat_format, full_u, full_t)
      -- At least a second after the bucket is full, by the server's clock.
      local least_s = (full_u + ahead_u) / 1000000 + 2
      if #tat == tat_length and may_set_range == 1 and expires_by == fence_tag and expires ~= ''
        and expires + 0 >= least_s then
        local offset = offsets[head]
        if not offset then
          offset = format('%d', #head)
          offsets[head] = offset
        end
        call('SETRANGE', keys[b], offset, tat)
      else
        local expiry_s = least_s + 4 + min((full_u - now_u) / 2000000, 3600)
        expiry_s = expiry_s - expiry_s % 1
        local state = format(state_format, head, tat, expiry_s, fence_tag)
        local expiry = format(expiry_format, expiry_s + test_s)
        if value then
          call('SET', keys[b], state, 'PXAT', expiry)
        else
          foreign = not call('SET', keys[b], state, 'PXAT', expiry, 'NX')
        end
      end
    elseif not value then
      foreign = call('EXISTS', keys[b]) == 1
    end
    if foreign then
      last = first
      reply[last] = -1
    end
  end
  at = next_bucket
end
if last == 5 then return struct.pack('<ddddd', now_u, now_n, reply[3], reply[4], reply[5]) end
return struct.pack('<' .. string.rep('d', last), unpack(reply, 1, last))
