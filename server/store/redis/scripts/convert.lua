-- Replaces a bucket's state by the same under other parameters, unless somebody was faster.
--
--   KEYS     the bucket's three
--   ARGV     the state and the receipts that were converted, as they were read;
--            time to live in milliseconds, then the new state ('': full, which is the same as no
--            bucket), receipts ('': none), and runs
--
-- Returns 1 if it was replaced, 0 if it is no longer what was read: nothing has changed then.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
  return 1
end
redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
if ARGV[5] ~= '' then redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[3]) end
for i = 6, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
if #ARGV > 5 then redis.call('PEXPIRE', KEYS[2], ARGV[3]) end
return 1
