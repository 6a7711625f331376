-- Precedes each guarded script (scripts.h). The last key is the fence's word (fence.h). It is
-- missing if the fence was replaced, and has another encoding if the data was loaded from a file or
-- a primary. Then the script decides nothing.
--
-- In a Cluster the word is in another slot of the same server, so it cannot be among the keys.
-- There the last key is the first key, once more, and the word is the last argument, which is
-- removed before the script runs. '' (in tests): the fence is not checked. A script whose buckets are
-- in different slots has no keys at all, so Redis looks for the Cluster's state only here.
local word = KEYS[#KEYS]
local encoding
if word ~= KEYS[1] then
  encoding = redis.call('OBJECT', 'ENCODING', word)
else
  word = table.remove(ARGV)
  encoding = word == '' and 'raw' or redis.pcall('OBJECT', 'ENCODING', word)
  if type(encoding) == 'table' and not string.find(encoding.err, 'non local key', 1, true) then
    if string.find(encoding.err, 'cluster is down', 1, true) then
      return redis.error_reply('CLUSTERDOWN The cluster is down')
    end
    return encoding
  end
end
if encoding ~= 'raw' then return redis.error_reply('FENCE replaced') end
