-- Reads buckets; or replaces them, if they are still as the caller knows them.
--
--   KEYS     three of each bucket (buckets.lua), those of request ids, the fence's (prelude.lua)
--   ARGV     time (clock.lua), 1 to replace or 0, with the number of request ids if there are any
--            ('1 3'), then for each bucket the state and the receipts that the caller knows ('':
--            none, or not known), or if it knows bookings their generation, and for each request id
--            what is remembered under it ('': nothing); and
--            to replace, for each bucket: time to live in milliseconds ('': leave it alone), state
--            ('': full, which is the same as no bucket), receipts ('': none), runs, fields of the
--            bookings to delete, fields and values to set, each of the last three preceded by
--            their number; and for each request id what is to be remembered ('': leave it alone)
--
-- A bucket with bookings, and a long log, has a hash in place of receipts
-- (server/store/redis/wire/open_bucket.h).
-- Its state contains its version, and equal versions are equal buckets: a caller that knows the
-- version gets nothing, and one that knows an older one only the chunks written since.
--
-- Returns 1 if they were replaced, else {microseconds, nanoseconds, then for each bucket: state,
-- receipts, runs}; of a bucket with bookings: state, past, and {names of all chunks, then the chunks
-- of later generations}. If there are request ids, a list of what is remembered follows.
local mode, ids = string.match(ARGV[2], '^([01]) ?(%d*)$')
ids = tonumber(ids) or 0
local count = (#KEYS - 1 - ids) / 3
local replace = mode == '1'
local states, receipts, booked = {}, {}, {}
local same = replace
for i = 1, count do
  local state = redis.call('GET', KEYS[3 * i - 2]) or ''
  local known = state == ARGV[2 * i + 1]
  states[i] = state
  booked[i] = string.find(state, '^%S+ %S+ @') ~= nil
  if not booked[i] then
    receipts[i] = redis.call('GET', KEYS[3 * i]) or ''
    known = known and receipts[i] == ARGV[2 * i + 2]
  end
  same = same and known
end
local remembered = {}
for i = 1, ids do
  remembered[i] = redis.call('GET', KEYS[3 * count + i]) or ''
  same = same and remembered[i] == ARGV[2 + 2 * count + i]
end

-- The past, the names of the chunks, and those of them that the caller cannot know.
local function read_bookings(key, generation)
  local past, names = unpack(redis.call('HMGET', key, 'past', 'chunks'))
  local later = {}
  for name, of in string.gmatch(names or '', '((%d+)%S*)') do
    if tonumber(of) > generation then later[#later + 1] = name end
  end
  local chunks = {names}
  -- Lua's stack takes 8,000 values.
  for from = 1, #later, 1000 do
    local some = redis.call('HMGET', key, unpack(later, from, math.min(from + 999, #later)))
    for i = 1, #some do chunks[#chunks + 1] = some[i] end
  end
  return past or '', chunks
end

if not same then
  local now_u, now_n = read_clock(ARGV[1])
  if not now_u then return now_n end
  local reply = {now_u, now_n}
  for i = 1, count do
    local text, list = receipts[i], nil
    if not booked[i] then
      list = redis.call('LRANGE', KEYS[3 * i - 1], 0, -1)
    elseif states[i] == ARGV[2 * i + 1] then
      text, list = '', {}
    else
      text, list = read_bookings(KEYS[3 * i], tonumber(ARGV[2 * i + 2]) or 0)
    end
    reply[#reply + 1] = states[i]
    reply[#reply + 1] = text
    reply[#reply + 1] = list
  end
  if ids > 0 then reply[#reply + 1] = remembered end
  return reply
end

local arg = 3 + 2 * count + ids
for i = 1, count do
  local state_key, runs_key, receipts_key = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local ttl, state, text = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  -- Where each list begins and ends.
  local runs = arg + 4
  local gone = runs + ARGV[runs - 1] + 1
  local fields = gone + ARGV[gone - 1] + 1
  arg = fields + ARGV[fields - 1]
  if ttl ~= '' then
    redis.call('DEL', runs_key)
    if state == '' then
      redis.call('DEL', state_key)
    else
      redis.call('SET', state_key, state, 'PX', ttl)
    end
    if arg > fields then
      if not booked[i] then redis.call('DEL', receipts_key) end
      if fields - 1 > gone then redis.call('HDEL', receipts_key, unpack(ARGV, gone, fields - 2)) end
      redis.call('HSET', receipts_key, unpack(ARGV, fields, arg - 1))
      redis.call('PEXPIRE', receipts_key, ttl)
    elseif text == '' then
      redis.call('DEL', receipts_key)
    else
      redis.call('SET', receipts_key, text, 'PX', ttl)
    end
    for j = runs, gone - 2, 1000 do
      redis.call('RPUSH', runs_key, unpack(ARGV, j, math.min(j + 999, gone - 2)))
    end
    if gone - 1 > runs then redis.call('PEXPIRE', runs_key, ttl) end
  end
end
for i = 1, ids do
  local value = ARGV[arg + i - 1]
  if value ~= '' then redis.call('SET', KEYS[3 * count + i], value, 'PX', 60000) end
end
return 1
