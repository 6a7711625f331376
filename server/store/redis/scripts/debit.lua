-- Debits from one bucket what a node granted without Redis, whether or not it fits.
--
--   KEYS     three of the bucket (buckets.lua)
--   ARGV     time, number of buckets (1), the bucket, then 4 numbers: what the permits cost
--
-- Returns {microseconds, nanoseconds, 7 numbers of the bucket afterwards}, or what load_buckets
-- answers.
local buckets, other = load_buckets()
if other then return other end

local bucket = buckets[1]
local i = first_item_arg
local charge = {tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]),
  tonumber(ARGV[i + 3])}
bucket.algorithm.take(bucket, charge, '0')
bucket.algorithm.save(bucket)
local reply = {now_u, now_n}
bucket.algorithm.level(bucket, charge, reply)
return reply
