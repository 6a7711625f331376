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
-- single limits and of ends of holds ('LIMIT#MICROSECONDS', fence.h). If that is longer than 1024
-- bytes, which there are once per slot, the ends of holds of all limits are put together
-- ('#MICROSECONDS', rounded up to a power of two). If it still is, all limits get the latest floor
-- of single limits.
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

-- Under which name the ends of holds of all limits are put together; nil: these are none.
local function holds_of_any(name)
  local hold_for = tonumber(string.match(name, '#(%d+)$'))
  if not hold_for then return nil end
  local rounded = 1
  while rounded < hold_for do rounded = rounded * 2 end
  return string.format('#%.0f', rounded)
end

-- What is to be noted where `noted` is.
local function note(noted)
  local all = math.max(floor, tonumber(string.match(noted, '^%d+') or '0'))
  local latest, limits, rates, holds = all, {}, {}, {}
  for _, text in ipairs({ARGV[6], string.match(noted, '^%d+(.*)$') or ''}) do
    for name, at in string.gmatch(text, ' (%S+) (%d+)') do
      at = tonumber(at)
      local function add(to, as)
        if at > (to[as] or all) then to[as] = at end
      end
      add(limits, name)
      local together = holds_of_any(name)
      if together then
        add(holds, together)
      else
        add(rates, name)
        latest = math.max(latest, at)
      end
    end
  end
  local function text_of(at, ...)
    local text = string.format('%.0f', at)
    for _, floors in ipairs({...}) do
      for name, its in pairs(floors) do text = text .. string.format(' %s %.0f', name, its) end
    end
    return text
  end
  local text = text_of(all, limits)
  if #text > 1024 then text = text_of(all, rates, holds) end
  return #text <= 1024 and text or text_of(latest, holds)
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
