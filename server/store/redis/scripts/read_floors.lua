-- Reads the floors that slots of a Cluster brought along (fence.h).
--
--   ARGV     their keys, which are in different slots and so cannot be KEYS
--
-- Returns what replace_fence.lua noted in each: '' if nothing, -1 if the slot is not here.
local floors = {}
for i, key in ipairs(ARGV) do
  local floor = redis.pcall('GET', key)
  floors[i] = type(floor) == 'table' and -1 or floor or ''
end
return floors
