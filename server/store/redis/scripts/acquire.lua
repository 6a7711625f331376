-- Decides acquisitions, in order, each with any number of charges, all or none.
--
--   KEYS     three of each bucket (buckets.lua)
--   ARGV     time, number of buckets, the buckets, then for each acquisition:
--              id of its receipt ('0': none wanted), number of charges (negative: the caller would
--                wait), then for each charge: which bucket, counted from 0, and 4 numbers
--
-- Returns {microseconds, nanoseconds, then for each acquisition: 1 or 0 for granted, and for each
-- of its charges: 1 or 0 for whether it fitted, and 7 numbers of its bucket afterwards}, or what
-- load_buckets answers. -1 instead of 1 or 0 is the last number: that acquisition would wait, and
-- neither it nor the later ones were decided.
--
-- A shadow charge never denies: it is taken where it fits and the acquisition is granted.
local buckets, other = load_buckets()
if other then return other end

local reply = {now_u, now_n}
local i = first_item_arg
while i <= #ARGV do
  local id, count = ARGV[i], tonumber(ARGV[i + 1])
  i = i + 2
  local charges = {}
  local granted = true
  local waits = count < 0
  if waits then count = -count end
  for c = 1, count do
    local bucket = buckets[ARGV[i] + 1]
    local charge = {tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4])}
    local fitting = not bucket.closed and bucket.algorithm.fits(bucket, charge)
    if not fitting and not bucket.shadow then granted = false end
    charges[c] = {bucket, charge, fitting}
    i = i + 5
  end
  if waits and not granted then
    reply[#reply + 1] = -1
    break
  end
  reply[#reply + 1] = granted and 1 or 0
  for _, one in ipairs(charges) do
    local bucket = one[1]
    if granted and one[3] then
      bucket.algorithm.take(bucket, one[2], id)
      bucket.changed = true
    end
    reply[#reply + 1] = one[3] and 1 or 0
    bucket.algorithm.level(bucket, one[2], reply)
  end
end

for _, bucket in ipairs(buckets) do
  if bucket.changed then bucket.algorithm.save(bucket) end
end
return reply
