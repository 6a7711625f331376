-- Buckets of all algorithms. Stands before acquire.lua, refund.lua and query.lua.
--
-- A bucket has three keys of one slot; the last two exist only where there is need:
--   state     a string of words: figures, who wrote it, the algorithm's own, 1 or 0 for whether
--             there are open receipts
--   runs      sliding_log only: a list, oldest first, of all runs but the last
--   receipts  a string of the open receipts, oldest first
-- The same rules as in server/algorithm/*.h, which explain them; tests/differential compares.
--
-- Numbers are doubles: exact up to 2^53. So a moment is a pair, whole microseconds and parts of
-- one: nanoseconds for logs and windows, for a token bucket its own ticks. Permits of logs and
-- windows are below 2^53, which the caller sees to.
--
-- Nothing is written before all buckets were read and all was decided.
local floor = math.floor

-- ARGV[1] is '' (the time is the server's) or, in tests, 'MICROSECONDS NANOSECONDS'. Keys then
-- live an hour longer, since the server's own time has nothing to do with it.
local now_u, now_n
local extra_ttl = 0
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_u, now_n = time[1] * 1000000 + time[2], 0
else
  local u, n = string.match(ARGV[1], '^(%d+) (%d+)$')
  now_u, now_n = tonumber(u), tonumber(n)
  extra_ttl = 3600000
end

local max_receipts = 128

-- What ARGV says of bucket i, counted from 1: kind, figures, writer, shadow, six numbers, and two of
-- what became of it when data may have been lost (marker.h; 0 0: nothing was): a token bucket is
-- full then at the earliest, all others count as used up until then.
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

-- Saves receipts of a bucket whose state stays as it is.
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

local function save_state(bucket, ttl, ...)
  local flag = save_receipts(bucket, ttl)
  local words = {bucket.figures, bucket.writer}
  for _, value in ipairs({...}) do
    words[#words + 1] = type(value) == 'number' and number(value) or value
  end
  words[#words + 1] = flag
  redis.call('SET', bucket.key, table.concat(words, ' '), 'PX', number(ttl))
end

-- ---- Each algorithm: load, fits, take, report, refund, save ----
--
-- A charge is {a, b, c, d}. Token bucket: cost, room (see acquire_token_bucket.lua). Others:
-- permits. `report` appends 7 numbers for the caller to make a level and a waiting time of.

local token_bucket = {}

function token_bucket.load(bucket, rest)
  bucket.base = bucket.numbers[1]
  bucket.now_t = now_n * (bucket.base / 1000)
  bucket.full_u, bucket.full_t = bucket.floor_u, bucket.floor_n
  bucket.receipts = {}
  if not rest then return true end
  local u, t, flag = string.match(rest, '^(%d+) (%d+) ([01])$')
  if not u then return false end
  u, t = tonumber(u), tonumber(t)
  if before(u, t, bucket.full_u, bucket.full_t) then
    -- Not known is how full it was meanwhile: its receipts are worth nothing.
    bucket.had_receipts = flag == '1'
  else
    bucket.full_u, bucket.full_t = u, t
    load_receipts(bucket, flag)
  end
  return true
end

function token_bucket.fits(bucket, charge)
  local u, t = later(bucket.full_u, bucket.full_t, now_u, bucket.now_t)
  u, t = plus(u, t, charge[1], charge[2], bucket.base)
  local until_u, until_t = plus(now_u, bucket.now_t, charge[3], charge[4], bucket.base)
  return not before(until_u, until_t, u, t)
end

local function lacking(bucket)
  if not before(now_u, bucket.now_t, bucket.full_u, bucket.full_t) then return 0, 0 end
  return minus(bucket.full_u, bucket.full_t, now_u, bucket.now_t, bucket.base)
end

local function worth_nothing(receipt) return receipt[4] == 0 and receipt[5] == 0 end

-- Each receipt keeps the least that the bucket has lacked since.
local function note_shortfall(bucket)
  if #bucket.receipts == 0 then return end
  local u, t = lacking(bucket)
  for i = #bucket.receipts, 1, -1 do
    local receipt = bucket.receipts[i]
    if not before(u, t, receipt[4], receipt[5]) then break end
    receipt[4], receipt[5] = u, t
  end
  drop_oldest_while(bucket, worth_nothing)
end

function token_bucket.take(bucket, charge, id)
  note_shortfall(bucket)
  local u, t = later(bucket.full_u, bucket.full_t, now_u, bucket.now_t)
  bucket.full_u, bucket.full_t = plus(u, t, charge[1], charge[2], bucket.base)
  local lack_u, lack_t = lacking(bucket)
  open_receipt(bucket, id, charge[1], charge[2], lack_u, lack_t)
end

function token_bucket.report(bucket, charge, reply)
  local u, t = lacking(bucket)
  for _, value in ipairs({u, t, 0, 0, 0, 0, 0}) do reply[#reply + 1] = value end
end

function token_bucket.refund(bucket, id)
  note_shortfall(bucket)
  local receipt, place = close_receipt(bucket, id)
  if not receipt then return nil end
  local u, t = receipt[2], receipt[3]
  if before(receipt[4], receipt[5], u, t) then u, t = receipt[4], receipt[5] end
  bucket.full_u, bucket.full_t = minus(bucket.full_u, bucket.full_t, u, t, bucket.base)
  -- What is given back was lacking at no moment since that grant any more.
  local least_u, least_t = minus(receipt[4], receipt[5], u, t, bucket.base)
  for i, other in ipairs(bucket.receipts) do
    if i >= place then
      other[4], other[5] = minus(other[4], other[5], u, t, bucket.base)
    elseif before(least_u, least_t, other[4], other[5]) then
      other[4], other[5] = least_u, least_t
    end
  end
  drop_oldest_while(bucket, worth_nothing)
  return u, t
end

function token_bucket.save(bucket)
  local u = lacking(bucket)
  save_state(bucket, ttl_ms(u), bucket.full_u, bucket.full_t)
end

-- State: permits, last run (2 numbers, permits), latest moment seen (2 numbers). A run is the
-- moment that its permits were written down at, a whole number of quanta.
local sliding_log = {}
local runs_at_once = 32

-- Calls visit(u, n, permits) from the oldest run that still counts until it returns false.
local function each_run(bucket, visit)
  if bucket.total == 0 then return end
  local at = bucket.dropped
  while not bucket.cleared do
    local runs = redis.call('LRANGE', bucket.runs_key, at, at + runs_at_once - 1)
    for _, run in ipairs(runs) do
      local u, n, permits = string.match(run, '^(%d+) (%d+) (%d+)$')
      if not visit(tonumber(u), tonumber(n), tonumber(permits)) then return end
    end
    if #runs < runs_at_once then break end
    at = at + runs_at_once
  end
  for _, run in ipairs(bucket.pushed) do
    if not visit(run[1], run[2], run[3]) then return end
  end
  visit(bucket.last_u, bucket.last_n, bucket.last_permits)
end

local function expiry(bucket, u, n)
  return plus(u, n, bucket.period_u, bucket.period_n, 1000)
end

local function clear_log(bucket)
  bucket.cleared, bucket.dropped, bucket.pushed = true, 0, {}
  bucket.total, bucket.last_permits = 0, 0
  bucket.last_u, bucket.last_n = 0, 0
end

function sliding_log.load(bucket, rest)
  local numbers = bucket.numbers
  bucket.capacity = numbers[1]
  bucket.period_u, bucket.period_n, bucket.quantum = numbers[2], numbers[3], numbers[4]
  bucket.seen_u, bucket.seen_n = now_u, now_n
  bucket.receipts = {}
  clear_log(bucket)
  if not rest then return true end
  local total, last_u, last_n, last_permits, seen_u, seen_n, flag =
    string.match(rest, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01])$')
  if not total then return false end
  bucket.total, bucket.last_permits = tonumber(total), tonumber(last_permits)
  bucket.last_u, bucket.last_n = tonumber(last_u), tonumber(last_n)
  bucket.seen_u, bucket.seen_n = later(now_u, now_n, tonumber(seen_u), tonumber(seen_n))
  bucket.cleared = false
  load_receipts(bucket, flag)
  -- Forgets what no longer counts.
  local last_expiry_u, last_expiry_n = expiry(bucket, bucket.last_u, bucket.last_n)
  if bucket.total == 0 or
     not before(bucket.seen_u, bucket.seen_n, last_expiry_u, last_expiry_n) then
    redis.call('LLEN', bucket.runs_key)  -- fails here, before any write, if it is no list
    clear_log(bucket)
    return true
  end
  local kept = bucket.total
  local dropped = 0
  each_run(bucket, function(u, n, permits)
    local expiry_u, expiry_n = expiry(bucket, u, n)
    if before(bucket.seen_u, bucket.seen_n, expiry_u, expiry_n) then return false end
    kept = kept - permits
    dropped = dropped + 1
    return true
  end)
  bucket.total, bucket.dropped = kept, dropped
  if kept == 0 then clear_log(bucket) end
  return true
end

function sliding_log.fits(bucket, charge)
  return fits(bucket.total, charge[1], bucket.capacity)
end

function sliding_log.take(bucket, charge, id)
  drop_oldest_while(bucket, function(receipt)
    local u, n = expiry(bucket, receipt[2], receipt[3])
    return bucket.total == 0 or not before(bucket.seen_u, bucket.seen_n, u, n)
  end)
  -- Rounded up to a whole number of quanta. The rest of a division by whole microseconds is
  -- below the quantum, so that 1000 of it still fit.
  local rest = math.fmod(bucket.seen_u, bucket.quantum)
  rest = math.fmod(rest * 1000 + bucket.seen_n, bucket.quantum)
  local u, n = bucket.seen_u, bucket.seen_n
  if rest ~= 0 then
    local up = bucket.quantum - rest
    local up_u = floor(up / 1000)
    u, n = plus(u, n, up_u, up - up_u * 1000, 1000)
  end
  if bucket.total == 0 then
    clear_log(bucket)
    bucket.last_u, bucket.last_n, bucket.last_permits = u, n, charge[1]
  elseif not before(bucket.last_u, bucket.last_n, u, n) then
    bucket.last_permits = bucket.last_permits + charge[1]
  else
    bucket.pushed[#bucket.pushed + 1] = {bucket.last_u, bucket.last_n, bucket.last_permits}
    bucket.last_u, bucket.last_n, bucket.last_permits = u, n, charge[1]
  end
  bucket.total = bucket.total + charge[1]
  open_receipt(bucket, id, bucket.last_u, bucket.last_n, charge[1], 0)
end

-- How long until so many permits fit; -1: never.
local function log_wait(bucket, permits)
  if permits > bucket.capacity then return -1, 0 end
  local counted = bucket.total
  local wait_u, wait_n = 0, 0
  each_run(bucket, function(u, n, of_run)
    if fits(counted, permits, bucket.capacity) then return false end
    u, n = expiry(bucket, u, n)
    wait_u, wait_n = minus(u, n, now_u, now_n, 1000)
    counted = counted - of_run
    return true
  end)
  return wait_u, wait_n
end

function sliding_log.report(bucket, charge, reply)
  local reset_u, reset_n, next_u, next_n = 0, 0, 0, 0
  if bucket.total > 0 then
    if bucket.last_permits > 0 then
      local u, n = expiry(bucket, bucket.last_u, bucket.last_n)
      reset_u, reset_n = minus(u, n, now_u, now_n, 1000)
    else
      reset_u, reset_n = log_wait(bucket, bucket.capacity)
    end
  end
  if bucket.total >= bucket.capacity then next_u, next_n = log_wait(bucket, 1) end
  local wait_u, wait_n = 0, 0
  if not sliding_log.fits(bucket, charge) then wait_u, wait_n = log_wait(bucket, charge[1]) end
  for _, value in ipairs({bucket.total, reset_u, reset_n, wait_u, wait_n, next_u, next_n}) do
    reply[#reply + 1] = value
  end
end

function sliding_log.refund(bucket, id)
  drop_oldest_while(bucket, function(receipt)
    local u, n = expiry(bucket, receipt[2], receipt[3])
    return bucket.total == 0 or not before(bucket.seen_u, bucket.seen_n, u, n)
  end)
  local receipt = close_receipt(bucket, id)
  if not receipt then return nil end
  local u, n, permits = receipt[2], receipt[3], receipt[4]
  local removed = 0
  local expiry_u, expiry_n = expiry(bucket, u, n)
  if bucket.total == 0 or not before(bucket.seen_u, bucket.seen_n, expiry_u, expiry_n) then
    return 0, 0
  end
  if u == bucket.last_u and n == bucket.last_n then
    removed = math.min(permits, bucket.last_permits)
    bucket.last_permits = bucket.last_permits - removed
  else
    local at = bucket.dropped
    each_run(bucket, function(run_u, run_n, of_run)
      if run_u == u and run_n == n then
        removed = math.min(permits, of_run)
        bucket.set_run = {at, string.format('%.0f %.0f %.0f', u, n, of_run - removed)}
        return false
      end
      at = at + 1
      return before(run_u, run_n, u, n)
    end)
  end
  bucket.total = bucket.total - removed
  if bucket.total == 0 then clear_log(bucket) end
  return removed, 0
end

function sliding_log.save(bucket)
  local u, n = expiry(bucket, later(bucket.last_u, bucket.last_n, bucket.seen_u, bucket.seen_n))
  u = minus(u, n, now_u, now_n, 1000)
  local ttl = ttl_ms(u)
  if bucket.cleared then
    redis.call('DEL', bucket.runs_key)
  else
    if bucket.set_run then redis.call('LSET', bucket.runs_key, bucket.set_run[1], bucket.set_run[2]) end
    if bucket.dropped > 0 then redis.call('LTRIM', bucket.runs_key, bucket.dropped, -1) end
  end
  for _, run in ipairs(bucket.pushed) do
    redis.call('RPUSH', bucket.runs_key, string.format('%.0f %.0f %.0f', run[1], run[2], run[3]))
  end
  redis.call('PEXPIRE', bucket.runs_key, number(ttl))
  save_state(bucket, ttl, bucket.total, bucket.last_u, bucket.last_n, bucket.last_permits,
    bucket.seen_u, bucket.seen_n)
end

-- State: the latest sub-window seen, and INDEX:PERMITS of each that has permits.
local sliding_window = {}

function sliding_window.load(bucket, rest)
  local numbers = bucket.numbers
  bucket.capacity = numbers[1]
  bucket.period_u, bucket.period_n, bucket.k = numbers[2], numbers[3], numbers[4]
  local periods, rest_u, rest_n = divide(now_u, now_n, bucket.period_u, bucket.period_n)
  local in_u, in_n = times(bucket.k, rest_u, rest_n)
  bucket.index = periods * bucket.k + divide(in_u, in_n, bucket.period_u, bucket.period_n)
  bucket.counts, bucket.used = {}, false
  bucket.receipts = {}
  bucket.total = 0
  if not rest then return true end
  local last, counts, flag = string.match(rest, '^(%d+) (%S+) ([01])$')
  if not last then return false end
  bucket.used = true
  bucket.last = tonumber(last)
  if bucket.index < bucket.last then bucket.index = bucket.last end
  for index, permits in string.gmatch(counts, '(%d+):(%d+),') do
    index, permits = tonumber(index), tonumber(permits)
    if index >= bucket.index - bucket.k then
      bucket.counts[#bucket.counts + 1] = {index, permits}
      bucket.total = bucket.total + permits
    end
  end
  load_receipts(bucket, flag)
  return true
end

function sliding_window.fits(bucket, charge)
  return fits(bucket.total, charge[1], bucket.capacity)
end

local function window_forgets(bucket)
  return function(receipt)
    return not bucket.used or receipt[2] + bucket.k < bucket.index
  end
end

function sliding_window.take(bucket, charge, id)
  drop_oldest_while(bucket, window_forgets(bucket))
  bucket.used = true
  local newest = bucket.counts[#bucket.counts]
  if newest and newest[1] == bucket.index then
    newest[2] = newest[2] + charge[1]
  else
    bucket.counts[#bucket.counts + 1] = {bucket.index, charge[1]}
  end
  bucket.total = bucket.total + charge[1]
  open_receipt(bucket, id, bucket.index, 0, charge[1], 0)
end

-- The sub-window from whose begin so many permits fit; 0: now, -1: never.
local function window_from(bucket, permits)
  if permits > bucket.capacity then return -1 end
  local counted = bucket.total
  if fits(counted, permits, bucket.capacity) then return 0 end
  for _, count in ipairs(bucket.counts) do
    counted = counted - count[2]
    if fits(counted, permits, bucket.capacity) then return count[1] + bucket.k + 1 end
  end
  return -1
end

function sliding_window.report(bucket, charge, reply)
  local next_from = 0
  if bucket.total >= bucket.capacity then next_from = window_from(bucket, 1) end
  local values = {bucket.total, window_from(bucket, bucket.capacity),
    window_from(bucket, charge[1]), next_from, 0, 0, 0}
  for _, value in ipairs(values) do reply[#reply + 1] = value end
end

function sliding_window.refund(bucket, id)
  drop_oldest_while(bucket, window_forgets(bucket))
  local receipt = close_receipt(bucket, id)
  if not receipt then return nil end
  for _, count in ipairs(bucket.counts) do
    if count[1] == receipt[2] then
      local removed = math.min(receipt[4], count[2])
      count[2] = count[2] - removed
      bucket.total = bucket.total - removed
      return removed, 0
    end
  end
  return 0, 0
end

function sliding_window.save(bucket)
  local parts = {}
  for _, count in ipairs(bucket.counts) do
    if count[2] > 0 then parts[#parts + 1] = string.format('%.0f:%.0f,', count[1], count[2]) end
  end
  if #parts == 0 then parts[1] = '-' end
  save_state(bucket, ttl_ms(2 * bucket.period_u + 2), bucket.index, table.concat(parts))
end

-- State: index of the wall clock's window, when it was first used and when it ends (2 numbers
-- each), permits, serial. The server's clock is the wall clock and the only one.
local fixed_window = {}

function fixed_window.load(bucket, rest)
  local numbers = bucket.numbers
  bucket.capacity = numbers[1]
  bucket.period_u, bucket.period_n = numbers[2], numbers[3]
  bucket.offset_u, bucket.offset_n = numbers[4], numbers[5]
  bucket.used, bucket.total, bucket.serial = false, 0, 0
  bucket.receipts = {}
  local local_u, local_n = plus(now_u, now_n, bucket.offset_u, bucket.offset_n, 1000)
  bucket.now_index = divide(local_u, local_n, bucket.period_u, bucket.period_n)
  if not rest then
    bucket.over = true
    return true
  end
  local index, opened_u, opened_n, ends_u, ends_n, total, serial, flag =
    string.match(rest, '^(%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01])$')
  if not index then return false end
  bucket.used = true
  bucket.index, bucket.total, bucket.serial = tonumber(index), tonumber(total), tonumber(serial)
  bucket.opened_u, bucket.opened_n = tonumber(opened_u), tonumber(opened_n)
  bucket.ends_u, bucket.ends_n = tonumber(ends_u), tonumber(ends_n)
  load_receipts(bucket, flag)
  local longest_u, longest_n =
    plus(bucket.opened_u, bucket.opened_n, bucket.period_u, bucket.period_n, 1000)
  bucket.over = not before(now_u, now_n, bucket.ends_u, bucket.ends_n) and
    (bucket.now_index > bucket.index or not before(now_u, now_n, longest_u, longest_n))
  return true
end

-- When the wall clock shows the end of a window.
local function window_end(bucket, index)
  local u, n = times(index + 1, bucket.period_u, bucket.period_n)
  return minus(u, n, bucket.offset_u, bucket.offset_n, 1000)
end

local function counted_now(bucket) return bucket.over and 0 or bucket.total end

function fixed_window.fits(bucket, charge)
  return fits(counted_now(bucket), charge[1], bucket.capacity)
end

local function not_this_window(bucket)
  return function(receipt)
    return not bucket.used or bucket.over or receipt[2] ~= bucket.serial
  end
end

function fixed_window.take(bucket, charge, id)
  drop_oldest_while(bucket, not_this_window(bucket))
  if bucket.over then
    local index = bucket.now_index
    if bucket.used and index == bucket.index then index = index + 1 end
    bucket.used, bucket.over = true, false
    bucket.index = index
    bucket.opened_u, bucket.opened_n = now_u, now_n
    local end_u, end_n = window_end(bucket, index)
    local longest_u, longest_n = plus(now_u, now_n, bucket.period_u, bucket.period_n, 1000)
    if before(longest_u, longest_n, end_u, end_n) then end_u, end_n = longest_u, longest_n end
    bucket.ends_u, bucket.ends_n = end_u, end_n
    bucket.total = 0
    bucket.serial = bucket.serial + 1
  end
  bucket.total = bucket.total + charge[1]
  open_receipt(bucket, id, bucket.serial, 0, charge[1], 0)
end

function fixed_window.report(bucket, charge, reply)
  local counted = counted_now(bucket)
  local wait_u, wait_n = 0, 0
  if counted > 0 then
    local u, n = window_end(bucket, bucket.index)
    u, n = later(u, n, bucket.ends_u, bucket.ends_n)
    local longest_u, longest_n =
      plus(bucket.opened_u, bucket.opened_n, bucket.period_u, bucket.period_n, 1000)
    if before(longest_u, longest_n, u, n) then u, n = longest_u, longest_n end
    wait_u, wait_n = minus(u, n, now_u, now_n, 1000)
  end
  for _, value in ipairs({counted, wait_u, wait_n, 0, 0, 0, 0}) do reply[#reply + 1] = value end
end

function fixed_window.refund(bucket, id)
  drop_oldest_while(bucket, not_this_window(bucket))
  local receipt = close_receipt(bucket, id)
  if not receipt then return nil end
  if not_this_window(bucket)(receipt) then return 0, 0 end
  local removed = math.min(receipt[4], bucket.total)
  bucket.total = bucket.total - removed
  return removed, 0
end

function fixed_window.save(bucket)
  local u, n = plus(bucket.opened_u, bucket.opened_n, bucket.period_u, bucket.period_n, 1000)
  u, n = later(u, n, now_u, now_n)
  u = minus(u, n, now_u, now_n, 1000)
  save_state(bucket, ttl_ms(u), bucket.index, bucket.opened_u, bucket.opened_n, bucket.ends_u,
    bucket.ends_n, bucket.total, bucket.serial)
end

local algorithms = {t = token_bucket, l = sliding_log, w = sliding_window, f = fixed_window}

-- Loads all buckets that KEYS and ARGV name. Returns them, and nil or what to answer instead.
-- {-2, which bucket from 0}: something is booked in it, and the caller has to decide by itself
-- (exchange.lua). {-1, which bucket, microseconds, nanoseconds, state, runs, receipts}: a bucket's
-- state is of other figures (or no state of ours), and the caller has to convert it.
local function load_buckets()
  local buckets = {}
  for i = 1, bucket_count do
    local arg = first_bucket_arg + (i - 1) * args_per_bucket
    local bucket = {
      key = KEYS[3 * i - 2], runs_key = KEYS[3 * i - 1], receipts_key = KEYS[3 * i],
      algorithm = algorithms[ARGV[arg]], figures = ARGV[arg + 1], writer = ARGV[arg + 2],
      shadow = ARGV[arg + 3] == '1', numbers = {},
      floor_u = tonumber(ARGV[arg + 10]), floor_n = tonumber(ARGV[arg + 11]),
    }
    for j = 1, 6 do bucket.numbers[j] = tonumber(ARGV[arg + 3 + j]) end
    local value = redis.call('GET', bucket.key)
    local rest
    if value then
      bucket.exists = true
      local figures, writer, words = string.match(value, '^(%S+) (%S+) (.*)$')
      rest = words
      if rest and string.byte(rest) == 64 then return nil, {-2, i - 1} end  -- '@'
      if figures ~= bucket.figures then rest = false end
      bucket.writer = writer
    end
    if rest == false or (value and not rest) or not bucket.algorithm.load(bucket, rest) then
      local runs = redis.call('LRANGE', bucket.runs_key, 0, -1)
      local receipts = redis.call('GET', bucket.receipts_key)
      return nil, {-1, i - 1, now_u, now_n, value, runs, receipts or ''}
    end
    bucket.closed = bucket.algorithm ~= token_bucket and
      before(now_u, now_n, bucket.floor_u, bucket.floor_n)
    buckets[i] = bucket
  end
  return buckets
end

local first_item_arg = first_bucket_arg + bucket_count * args_per_bucket
