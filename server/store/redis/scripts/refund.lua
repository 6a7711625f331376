-- Closes a receipt in all the buckets of its acquisition, and gives back what it is worth there.
--
--   KEYS     three of each bucket (buckets.lua), that of the request id if there is one
--   ARGV     time, number of buckets, the buckets, then the receipt's id
--
-- What is remembered under the request id (wire/remembered_grant.h) says from then on that its
-- grant was refunded.
--
-- Returns {microseconds, nanoseconds, then for each bucket: 1 or 0 for whether the receipt was
-- open, and what was given back (2 numbers: ticks of a token bucket as a pair, or permits and 0)},
-- or what load_buckets answers.
local buckets, other = load_buckets()
if other then return other end

local id = ARGV[first_item_arg]
local reply = {now_u, now_n}
local open = false
for _, bucket in ipairs(buckets) do
  local a, b
  if bucket.exists then a, b = bucket.algorithm.refund(bucket, id) end
  reply[#reply + 1] = a and 1 or 0
  reply[#reply + 1] = a or 0
  reply[#reply + 1] = b or 0
  if a then bucket.changed, open = true, true end
end
for _, bucket in ipairs(buckets) do
  if bucket.changed then
    bucket.algorithm.save(bucket)
  elseif bucket.had_receipts then
    -- What the others are worth now is saved anyway.
    keep_receipts(bucket)
  end
end
local once_key = KEYS[3 * bucket_count + 1]
if open and once_key ~= KEYS[#KEYS] then
  local fingerprint, receipt, time = string.match(redis.call('GET', once_key) or '',
    '^(%x+) (%d+) (%d+) ?[%d,]*$')
  if receipt == id then
    redis.call('SET', once_key, fingerprint .. ' 18446744073709551615 ' .. time, 'KEEPTTL')
  end
end
return reply
