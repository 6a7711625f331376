-- Makes a bucket full, which is the same as none; its open receipts become worthless.
--
--   KEYS     the bucket's three
--
-- Returns 1 if it existed, else 0.
local existed = redis.call('EXISTS', KEYS[1])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return existed
