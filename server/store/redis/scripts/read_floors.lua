-- Reads the floors that slots of a Cluster brought along (fence.h).
--
--   ARGV     their keys, which are in different slots and so cannot be KEYS
--
-- Returns a floor for each, in microseconds: 0 if it has none, -1 if the slot is not here.
local floors = {}
for i, key in ipairs(ARGV) do
  local floor = redis.pcall('GET', key)
  floors[i] = type(floor) == 'table' and -1 or tonumber(floor or '0')
end
return floors
