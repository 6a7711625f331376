-- Replaces the fence, unless another node was first.
--
--   KEYS     the fence, the key of its word, and the key of the new fence's word
--   ARGV     the fence that the caller found ('': none), the text of the new one before its floor
--            and after it, its floor in microseconds, and '' or how far from now it lies at least;
--            in a Cluster then the floor key of each slot of this server (read_floors.lua), which
--            are in other slots and so not among KEYS
--
-- Returns the fence afterwards.
local found = redis.call('GET', KEYS[1])
if (found or '') ~= ARGV[1] then return found or '' end
local floor = tonumber(ARGV[4])
if ARGV[5] ~= '' then
  local time = redis.call('TIME')
  floor = math.max(floor, time[1] * 1000000 + time[2] + ARGV[5])
end
local fence = ARGV[2] .. string.format('%.0f', floor) .. ARGV[3]
redis.call('SET', KEYS[1], fence)
redis.call('DEL', KEYS[2])
-- A string that was appended to has the encoding 'raw'; a short string that was loaded (from a
-- primary or a file) has 'embstr'.
redis.call('SET', KEYS[3], 'm')
redis.call('APPEND', KEYS[3], 'm')
if floor > 0 then
  for i = 6, #ARGV do
    -- An error: the slot has moved to another server meanwhile.
    local noted = redis.pcall('GET', ARGV[i])
    if type(noted) ~= 'table' and floor > tonumber(noted or '0') then
      redis.pcall('SET', ARGV[i], string.format('%.0f', floor))
    end
  end
end
return fence
