-- Fixed windows by the rules of server/algorithm/fixed_window.h. Follows buckets.lua.
--
-- State: index of the wall clock's window, when it was first used and when it ends (2 numbers
-- each), permits, serial. The server's clock is the wall clock and the only one, so it never lags:
-- a window is over when it ends.
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
  bucket.over = not before(now_u, now_n, bucket.ends_u, bucket.ends_n)
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
    bucket.used, bucket.over = true, false
    bucket.index = bucket.now_index
    bucket.opened_u, bucket.opened_n = now_u, now_n
    bucket.ends_u, bucket.ends_n = window_end(bucket, bucket.index)
    bucket.total = 0
    bucket.serial = bucket.serial + 1
  end
  bucket.total = bucket.total + charge[1]
  open_receipt(bucket, id, bucket.serial, 0, charge[1], 0)
end

function fixed_window.force(bucket, charge, most, _, id)
  drop_oldest_while(bucket, not_this_window(bucket))
  return force_count(bucket, charge, most, counted_now(bucket), id)
end

function fixed_window.give_back(bucket, permits)
  drop_oldest_while(bucket, not_this_window(bucket))
  local given = math.min(permits, counted_now(bucket))
  if given == 0 then return 0 end
  bucket.total = bucket.total - given
  forgive(bucket, given, 0, 1)
  return given
end

function fixed_window.level(bucket, charge, reply)
  local counted = counted_now(bucket)
  local wait_u, wait_n = 0, 0
  if counted > 0 then
    wait_u, wait_n = minus(bucket.ends_u, bucket.ends_n, now_u, now_n, 1000)
  end
  for _, value in ipairs({counted, wait_u, wait_n, 0, 0, 0, 0}) do reply[#reply + 1] = value end
end

function fixed_window.refundable(bucket)
  return counted_receipts(bucket, not_this_window(bucket), counted_now(bucket))
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
  local u, n = plus(bucket.ends_u, bucket.ends_n, bucket.period_u, bucket.period_n, 1000)
  u, n = later(u, n, now_u, now_n)
  u = minus(u, n, now_u, now_n, 1000)
  save_state(bucket, ttl_ms(u), bucket.index, bucket.opened_u, bucket.opened_n, bucket.ends_u,
    bucket.ends_n, bucket.total, bucket.serial)
end

return fixed_window
