-- Raises the moments up to which grant times may be promised, in the fence, and tells the caller
-- what other nodes have raised.
--
--   KEYS     the fence
--   ARGV     its word; the number of raises that the caller knows; the moment for all limits (0: not
--            raised); a moment that has passed, and promises before it are forgotten; then for each
--            limit that is raised: name, promised up to, floors lifted up to (0: not raised).
--            Moments in microseconds
--
-- Returns -1 if the fence was replaced, 0 if the caller knows it as it is, else the fence.
local text = redis.call('GET', KEYS[1]) or ''
local before, word, floor, lag, promised, durable, rest =
  string.match(text, '^(%S+ %d+ )(%S+) (%d+)( %d+ )(%d+)( [01]%S*)(.*)$')
if word ~= ARGV[1] then return -1 end
local raises = string.match(rest, '^ (%d+)') or '0'
local raised = false
local function later(is, wanted)
  if tonumber(wanted) <= tonumber(is) then return is end
  raised = true
  return wanted
end
promised = later(promised, ARGV[3])
if #ARGV == 4 and not raised then return raises == ARGV[2] and 0 or text end

local names, limits = {}, {}
local function times_of(name)
  if not limits[name] then
    names[#names + 1] = name
    limits[name] = {'0', '0', '0'}
  end
  return limits[name]
end
local entries = string.sub(rest, #raises + 2)
for name, at, to, lifted in string.gmatch(entries, ' (%S+) (%d+) (%d+) (%d+)') do
  local times = times_of(name)
  times[1], times[2], times[3] = at, to, lifted
end
for i = 5, #ARGV, 3 do
  local times = times_of(ARGV[i])
  local counted = tonumber(times[2]) > tonumber(times[3])
  times[2], times[3] = later(times[2], ARGV[i + 1]), later(times[3], ARGV[i + 2])
  -- Promises that became floors were removed then. This one is of data that stands.
  if counted and tonumber(times[2]) <= tonumber(times[3]) then
    times[2] = string.format('%.0f', times[3] + 1)
  end
end
if not raised then return raises == ARGV[2] and 0 or text end
local passed = tonumber(ARGV[4])
local parts = {string.format('%s%s %s%s%s%s %.0f', before, word, floor, lag, promised, durable,
  raises + 1)}
for _, name in ipairs(names) do
  local at, to, lifted = unpack(limits[name])
  local past = tonumber(at) <= tonumber(floor)
  -- The notes of slots may still have what was lifted.
  local lifts = tonumber(lifted) > tonumber(floor)
  if not past or lifts or tonumber(to) > passed then
    parts[#parts + 1] = string.format('%s %s %s %s', name, past and '0' or at, to, lifted)
  end
end
text = table.concat(parts, ' ')
redis.call('SET', KEYS[1], text)
return text
