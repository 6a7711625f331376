-- Looks at buckets and changes nothing.
--
--   KEYS     three of each bucket (buckets.lua)
--   ARGV     time, number of buckets, the buckets, then for each: 4 numbers, what one permit costs
--
-- Returns {microseconds, nanoseconds, then for each bucket: 1 or 0 for whether it exists, 7 numbers,
-- how many of its open receipts are worth anything, and what they would give back together (2
-- numbers, as refund.lua answers it)}, or what load_buckets answers.
local buckets, other = load_buckets()
if other then return other end

local reply = {now_u, now_n}
for i, bucket in ipairs(buckets) do
  local arg = first_item_arg + (i - 1) * 4
  reply[#reply + 1] = bucket.exists and 1 or 0
  bucket.algorithm.level(bucket, {tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]),
    tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])}, reply)
  for _, value in ipairs({bucket.algorithm.refundable(bucket)}) do reply[#reply + 1] = value end
end
return reply
