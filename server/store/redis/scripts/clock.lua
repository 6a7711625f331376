-- Precedes each script that works by the time, other than acquire_token_buckets.lua, which reads the
-- clock by the same rules.
--
-- Returns the time that `word` asks for, as microseconds and nanoseconds; or nil, and the error to
-- answer. `word` is one of
--   '-CORRECTION LEAST LATEST'  the server's clock, set back by CORRECTION microseconds (fence.h). If
--                               it does not show a time from LEAST to LATEST it was set, and
--                               nothing is decided
--   ''                          the server's clock as it is
--   'MICROSECONDS NANOSECONDS'  the time of a test
local function read_clock(word)
  local u, n = string.match(word, '^(%d+) (%d+)$')
  if u then return tonumber(u), tonumber(n) end
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  if word == '' then return now, 0 end
  local correction, least, latest = string.match(word, '^-(%d+) (%d+) (%d+)$')
  if now < tonumber(least) or now > tonumber(latest) then
    return nil, redis.error_reply('CLOCK was set')
  end
  return now - correction, 0
end
