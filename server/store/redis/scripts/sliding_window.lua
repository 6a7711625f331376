-- Sliding windows by the rules of server/algorithm/sliding_window.h. Follows buckets.lua.
--
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

function sliding_window.force(bucket, charge, most, _, id)
  drop_oldest_while(bucket, window_forgets(bucket))
  return force_count(bucket, charge, most, bucket.total, id)
end

-- The sub-window at whose start so many permits fit; 0: now, -1: never.
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

function sliding_window.level(bucket, charge, reply)
  local next_from = 0
  if bucket.total >= bucket.capacity then next_from = window_from(bucket, 1) end
  local values = {bucket.total, window_from(bucket, bucket.capacity),
    window_from(bucket, charge[1]), next_from, 0, 0, 0}
  for _, value in ipairs(values) do reply[#reply + 1] = value end
end

function sliding_window.refundable(bucket)
  return counted_receipts(bucket, window_forgets(bucket), bucket.total)
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

return sliding_window
