-- Stands before every script. The last key is the fence's word (fence.h). It is gone when the
-- fence was replaced, and in another form when the data was loaded anew. Nothing is decided then.
--
-- In a Cluster the word is in a slot of its own at the same server, so it cannot be among the keys.
-- There the last key is the first one, once more, and the word is the last argument, which the
-- script does not see. '' (a test): no fence is looked for.
local word = KEYS[#KEYS]
local encoding
if word ~= KEYS[1] then
  encoding = redis.call('OBJECT', 'ENCODING', word)
else
  word = table.remove(ARGV)
  encoding = word == '' and 'raw' or redis.pcall('OBJECT', 'ENCODING', word)
  if type(encoding) == 'table' and not string.find(encoding.err, 'non local key', 1, true) then
    return encoding
  end
end
if encoding ~= 'raw' then return redis.error_reply('FENCE replaced') end
