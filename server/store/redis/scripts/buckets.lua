-- Functions that buckets of all algorithms share. Precedes, together with the algorithms
-- (token_bucket.lua, sliding_log.lua, sliding_window.lua, fixed_window.lua) and load_buckets.lua,
-- each script that works on any bucket (scripts.h).
--
-- A bucket has three keys of one slot; the last two exist only where there is need:
--   state     a string of words: parameters, writer, the words of the algorithm, 1 or 0 for whether
--             there are open receipts
--   runs      sliding_log only: a list, oldest first, of all runs but the last
--   receipts  a string of the open receipts, oldest first
-- The rules are those of server/algorithm/*.h, which explains them; tests/differential compares.
--
-- Numbers are doubles: exact up to 2^53. So a moment is a pair, whole microseconds and parts of
-- one: nanoseconds for logs and windows, for a token bucket its own ticks. Permits of logs and
-- windows are below 2^53, which the caller sees to.
--
-- Nothing is written before all buckets are read and everything is decided.
local floor = math.floor

-- ARGV[1] is the time (clock.lua). Keys of a test that has its own time live an hour longer, since
-- the server's time has nothing to do with it.
local now_u, now_n = read_clock(ARGV[1])
if not now_u then return now_n end
local extra_ttl = string.find(ARGV[1], '^%d') and 3600000 or 0

local max_receipts = 128

-- By the letter of its kind, a function that defines each algorithm, and returns its functions.
-- Each is the text of a file (scripts.cc). To define all takes Redis longer than a decision does.
local definitions = {}

-- The arguments of bucket i, counted from 1: kind, parameters, writer, shadow, six numbers, and the
-- floor (two numbers; fence.h; 0 0: no data was lost): a token bucket is full at the floor at the
-- earliest, all others count as used up until then. If the first number is negative, this is so
-- only if the bucket is missing.
local first_bucket_arg = 3
local args_per_bucket = 12
local bucket_count = tonumber(ARGV[2])

local function before(u1, n1, u2, n2) return u1 < u2 or (u1 == u2 and n1 < n2) end

local function plus(u1, n1, u2, n2, base)
  local u, n = u1 + u2, n1 + n2
  if n >= base then return u + 1, n - base end
  return u, n
end

local function minus(u1, n1, u2, n2, base)
  if n1 >= n2 then return u1 - u2, n1 - n2 end
  return u1 - u2 - 1, n1 - n2 + base
end

local function later(u1, n1, u2, n2)
  if before(u1, n1, u2, n2) then return u2, n2 end
  return u1, n1
end

-- count * (u, n) in nanoseconds-based pairs. REQUIRES: both products below 2^53.
local function times(count, u, n)
  local product = count * n
  local carry = floor(product / 1000)
  return count * u + carry, product - carry * 1000
end

-- floor((u, n) / (period_u, period_n)), and the rest. The quotient of doubles is off by one at
-- most, since it is below 2^53; the rest is exact.
local function divide(u, n, period_u, period_n)
  local quotient = floor(u / (period_u + period_n / 1000))
  local whole_u, whole_n = times(quotient, period_u, period_n)
  while before(u, n, whole_u, whole_n) do
    quotient = quotient - 1
    whole_u, whole_n = times(quotient, period_u, period_n)
  end
  local rest_u, rest_n = minus(u, n, whole_u, whole_n, 1000)
  while not before(rest_u, rest_n, period_u, period_n) do
    quotient = quotient + 1
    rest_u, rest_n = minus(rest_u, rest_n, period_u, period_n, 1000)
  end
  return quotient, rest_u, rest_n
end

local function fits(counted, permits, capacity)
  return counted <= capacity and permits <= capacity - counted
end

local function ttl_ms(u) return floor(u / 1000) + 2 + extra_ttl end

local function number(value) return string.format('%.0f', value) end

-- ---- Receipts: {id, a, b, c, d}. Token bucket: cost, least shortfall. Others: when, permits ----

local function load_receipts(bucket, flag)
  bucket.receipts = {}
  if flag ~= '1' then return end
  local text = redis.call('GET', bucket.receipts_key)
  if not text then return end
  for id, a, b, c, d in string.gmatch(text, '(%d+),(%d+),(%d+),(%d+),(%d+);') do
    bucket.receipts[#bucket.receipts + 1] =
      {id, tonumber(a), tonumber(b), tonumber(c), tonumber(d)}
  end
  bucket.had_receipts = true
end

local function receipts_text(bucket)
  local parts = {}
  for i, r in ipairs(bucket.receipts) do
    parts[i] = string.format('%s,%.0f,%.0f,%.0f,%.0f;', r[1], r[2], r[3], r[4], r[5])
  end
  return table.concat(parts)
end

-- Returns the flag for the state.
local function save_receipts(bucket, ttl)
  if #bucket.receipts == 0 then
    if bucket.had_receipts then redis.call('DEL', bucket.receipts_key) end
    return '0'
  end
  redis.call('SET', bucket.receipts_key, receipts_text(bucket), 'PX', number(ttl))
  return '1'
end

-- Saves receipts of a bucket whose state does not change.
local function keep_receipts(bucket)
  if #bucket.receipts == 0 then
    redis.call('DEL', bucket.receipts_key)
  else
    redis.call('SET', bucket.receipts_key, receipts_text(bucket), 'KEEPTTL')
  end
end

local function open_receipt(bucket, id, a, b, c, d)
  if id == '0' then return end
  while #bucket.receipts >= max_receipts do table.remove(bucket.receipts, 1) end
  bucket.receipts[#bucket.receipts + 1] = {id, a, b, c, d}
end

local function close_receipt(bucket, id)
  for i, receipt in ipairs(bucket.receipts) do
    if receipt[1] == id then
      table.remove(bucket.receipts, i)
      return receipt, i
    end
  end
  return nil
end

-- Lowers what each receipt is worth by (u, n): permits and 0, or ticks of a token bucket.
local function forgive(bucket, u, n, base)
  local function less(a, b)
    if not before(u, n, a, b) then return 0, 0 end
    return minus(a, b, u, n, base)
  end
  for _, receipt in ipairs(bucket.receipts) do
    receipt[4], receipt[5] = less(receipt[4], receipt[5])
    if bucket.kind == 't' then
      receipt[2], receipt[3] = less(receipt[2], receipt[3])
    end
  end
end

local function drop_oldest_while(bucket, worthless)
  local count = 0
  while bucket.receipts[count + 1] and worthless(bucket.receipts[count + 1]) do
    count = count + 1
  end
  if count == 0 then return end
  local kept = {}
  for i = count + 1, #bucket.receipts do kept[#kept + 1] = bucket.receipts[i] end
  bucket.receipts = kept
end

-- Of a log or window: how many receipts are open, and their permits, of which it counts `counted`.
local function counted_receipts(bucket, forgets, counted)
  drop_oldest_while(bucket, forgets)
  local permits = 0
  for _, receipt in ipairs(bucket.receipts) do permits = permits + receipt[4] end
  return #bucket.receipts, math.min(permits, counted), 0
end

local function save_state(bucket, ttl, ...)
  local flag = save_receipts(bucket, ttl)
  local words = {bucket.parameters, bucket.writer}
  for i = 1, select('#', ...) do
    local value = select(i, ...)
    words[i + 2] = type(value) == 'number' and number(value) or value
  end
  words[#words + 1] = flag
  redis.call('SET', bucket.key, table.concat(words, ' '), 'PX', number(ttl))
end

-- A forced debit of a log or window: at most `most` permits count, `counted` of them until now.
local function force_count(bucket, charge, most, counted, id)
  local permits = math.max(math.min(charge[1], most - counted), 0)
  forgive(bucket, charge[1] - permits, 0, 1)
  if permits > 0 then bucket.algorithm.take(bucket, {permits}, id) end
  return permits, 0
end

-- Each algorithm is a table of load, fits, take, force, level, refundable, refund and
-- save; fixed_window has give_back, too.
--
-- A charge is {a, b, c, d}. Token bucket: cost, room (see acquire_token_buckets.lua). Others:
-- permits. `level` appends 7 numbers, from which the caller computes level and waiting time.
