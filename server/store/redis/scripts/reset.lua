-- Makes a bucket full, which is the same as none; its open receipts become worthless.
--
--   KEYS     the bucket's three
--
-- Returns 1 if it existed, 0 if not, -2 if it has bookings, which stand: see exchange.lua.
local state = redis.call('GET', KEYS[1])
if state and string.find(state, '^%S+ %S+ @') then return -2 end
local existed = state and 1 or 0
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return existed
