-- Closes receipts that will not be refunded. Gives nothing back.
--
--   KEYS     three of each bucket (buckets.lua)
--   ARGV     the receipts' ids
--
-- Returns how many were closed. Receipts of buckets with bookings stay open.
local closing = {}
for _, id in ipairs(ARGV) do closing[id] = true end

local closed = 0
for i = 1, #KEYS, 3 do
  local state = redis.call('GET', KEYS[i])
  local text = state and string.sub(state, -2) == ' 1' and redis.call('GET', KEYS[i + 2])
  if text then
    local kept, before = {}, closed
    for receipt, id in string.gmatch(text, '((%d+),[^;]*;)') do
      if closing[id] then
        closed = closed + 1
      else
        kept[#kept + 1] = receipt
      end
    end
    if closed > before and #kept > 0 then
      redis.call('SET', KEYS[i + 2], table.concat(kept), 'KEEPTTL')
    elseif closed > before then
      redis.call('DEL', KEYS[i + 2])
      redis.call('SET', KEYS[i], string.sub(state, 1, -2) .. '0', 'KEEPTTL')
    end
  end
end
return closed
