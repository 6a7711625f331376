-- Raises the moment up to which grant times may be promised, in the fence.
--
--   KEYS     the fence
--   ARGV     its word, and the moment in microseconds
--
-- Returns that moment afterwards; -1 if the fence was replaced.
local text = redis.call('GET', KEYS[1])
local before, word, middle, promised, after =
  string.match(text or '', '^(%S+ %d+ )(%S+)( %d+ %d+ )(%d+)( [01])$')
if word ~= ARGV[1] then return -1 end
if tonumber(ARGV[2]) > tonumber(promised) then
  promised = ARGV[2]
  redis.call('SET', KEYS[1], before .. word .. middle .. promised .. after)
end
return tonumber(promised)
