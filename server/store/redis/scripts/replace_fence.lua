-- Replaces the fence, unless another node was first.
--
--   KEYS     the fence, the key of its word, and the key of the new fence's word
--   ARGV     the fence that the caller found ('': none), the text of the new one before its floor
--            and after it, its floor in microseconds, '' or how far from the server's clock it lies
--            at least, the floors of single limits (' NAME FLOOR' of each); in a Cluster then the
--            floor key of each slot of this server (read_floors.lua), which are in other slots and
--            so not among KEYS
--
-- Notes 'FLOOR NAME FLOOR NAME FLOOR ...' in each slot: the floor of all limits, and later ones of
-- single limits. If that is longer than 1024 bytes, which there are once per slot, all limits get
-- the latest.
--
-- Returns the fence afterwards.
local found = redis.call('GET', KEYS[1])
if (found or '') ~= ARGV[1] then return found or '' end
local floor = tonumber(ARGV[4])
if ARGV[5] ~= '' then
  local time = redis.call('TIME')
  -- Each loss has a later floor than the one before, by which nodes tell them apart.
  floor = math.max(floor + 1, time[1] * 1000000 + time[2] + ARGV[5])
end
local fence = ARGV[2] .. string.format('%.0f', floor) .. ARGV[3]
redis.call('SET', KEYS[1], fence)
redis.call('DEL', KEYS[2])
-- A string that was appended to has the encoding 'raw'; a short string that was loaded (from a
-- primary or a file) has 'embstr'.
redis.call('SET', KEYS[3], 'm')
redis.call('APPEND', KEYS[3], 'm')
if floor == 0 and ARGV[6] == '' then return fence end

-- What is to be noted where `noted` is.
local function note(noted)
  local all = math.max(floor, tonumber(string.match(noted, '^%d+') or '0'))
  local latest, limits = all, {}
  for _, text in ipairs({ARGV[6], string.match(noted, '^%d+(.*)$') or ''}) do
    for name, at in string.gmatch(text, ' (%S+) (%d+)') do
      at = tonumber(at)
      if at > (limits[name] or all) then limits[name] = at end
      if at > latest then latest = at end
    end
  end
  local text = string.format('%.0f', all)
  for name, at in pairs(limits) do text = text .. string.format(' %s %.0f', name, at) end
  return #text <= 1024 and text or string.format('%.0f', latest)
end
local notes = {}  -- most slots have the same
for i = 7, #ARGV do
  -- An error: the slot has moved to another server meanwhile.
  local noted = redis.pcall('GET', ARGV[i])
  if type(noted) ~= 'table' then
    noted = noted or ''
    notes[noted] = notes[noted] or note(noted)
    if notes[noted] ~= noted then redis.pcall('SET', ARGV[i], notes[noted]) end
  end
end
return fence
