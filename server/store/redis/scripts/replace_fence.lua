-- Replaces the fence, unless somebody was faster.
--
--   KEYS     the fence, the key that scripts look for as long as it stands, and the one of its
--            replacement
--   ARGV     what the caller found ('': none), the text of the new one before its floor and after
--            it, its floor in microseconds, and '' or how long from now it is at least; in a
--            Cluster then the floor's key of each slot that is here (floors.lua), which are in
--            other slots and so not among KEYS
--
-- Returns the fence as it is then.
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
-- What is appended to is 'raw'. A short string that was loaded (from a primary, from a file) is
-- 'embstr'.
redis.call('SET', KEYS[3], 'm')
redis.call('APPEND', KEYS[3], 'm')
if floor > 0 then
  for i = 6, #ARGV do
    -- A slot that was moved away meanwhile is an error, and no longer this server's.
    local noted = redis.pcall('GET', ARGV[i])
    if type(noted) ~= 'table' and floor > tonumber(noted or '0') then
      redis.pcall('SET', ARGV[i], string.format('%.0f', floor))
    end
  end
end
return fence
