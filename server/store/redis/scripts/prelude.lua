-- Stands before every script. The last key is the marker's word (marker.h). It is gone when the
-- marker was replaced, and in another form when the data was loaded anew. Nothing is decided then.
-- The first key, once more: no marker is looked for.
local word = KEYS[#KEYS]
if word ~= KEYS[1] and redis.call('OBJECT', 'ENCODING', word) ~= 'raw' then
  return redis.error_reply('MARKER replaced')
end
