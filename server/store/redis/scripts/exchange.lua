-- Reads buckets; or replaces them, if they are still as the caller knows them.
--
--   KEYS     three of each bucket (buckets.lua), the fence's (prelude.lua)
--   ARGV     time, 1 to replace or 0, then for each bucket the state and the receipts that the
--            caller knows ('': none, or not known); and to replace, for each bucket: time to live
--            in milliseconds ('': leave it alone), state ('': full, which is the same as no
--            bucket), receipts or bookings ('': none), number of runs, runs
--
-- Returns 1 if they were replaced, else {microseconds, nanoseconds, then for each bucket: state,
-- receipts or bookings, runs}. The state of a bucket with bookings contains its version, and equal
-- versions are equal buckets: a caller that reads gets no bookings of a version that it knows.
local count = (#KEYS - 1) / 3
local replace = ARGV[2] == '1'
local states, texts = {}, {}
local same = replace
for i = 1, count do
  local state = redis.call('GET', KEYS[3 * i - 2]) or ''
  local known = state == ARGV[2 * i + 1]
  states[i] = state
  if string.find(state, '^%S+ %S+ @') then
    if known and not replace then texts[i] = '' end
  else
    texts[i] = redis.call('GET', KEYS[3 * i]) or ''
    known = known and texts[i] == ARGV[2 * i + 2]
  end
  same = same and known
end

if not same then
  local now_u, now_n
  if ARGV[1] == '' then
    local time = redis.call('TIME')
    now_u, now_n = time[1] * 1000000 + time[2], 0
  else
    local u, n = string.match(ARGV[1], '^(%d+) (%d+)$')
    now_u, now_n = tonumber(u), tonumber(n)
  end
  local reply = {now_u, now_n}
  for i = 1, count do
    reply[#reply + 1] = states[i]
    reply[#reply + 1] = texts[i] or redis.call('GET', KEYS[3 * i]) or ''
    reply[#reply + 1] = redis.call('LRANGE', KEYS[3 * i - 1], 0, -1)
  end
  return reply
end

local arg = 3 + 2 * count
for i = 1, count do
  local state_key, runs_key, receipts_key = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local ttl, state, receipts, runs = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3]
  arg = arg + 4
  if ttl ~= '' then
    redis.call('DEL', runs_key)
    if state == '' then
      redis.call('DEL', state_key)
    else
      redis.call('SET', state_key, state, 'PX', ttl)
    end
    if receipts == '' then
      redis.call('DEL', receipts_key)
    else
      redis.call('SET', receipts_key, receipts, 'PX', ttl)
    end
    for j = arg, arg + runs - 1 do redis.call('RPUSH', runs_key, ARGV[j]) end
    if tonumber(runs) > 0 then redis.call('PEXPIRE', runs_key, ttl) end
  end
  arg = arg + runs
end
return 1
