-- Token buckets by the rules of server/algorithm/token_bucket.h. Follows buckets.lua.
--
-- State: the TAT, when it is full again: microseconds, and ticks of a microsecond. Behind the flag
-- there may be the time at which the key expires, and whose clock that is by
-- (acquire_token_buckets.lua).
local token_bucket = {}

function token_bucket.load(bucket, rest)
  bucket.base = bucket.numbers[1]
  bucket.now_t = now_n * (bucket.base / 1000)
  bucket.full_u, bucket.full_t = bucket.floor_u, bucket.floor_n
  bucket.receipts = {}
  if not rest then return true end
  local u, t, flag = string.match(rest, '^(%d+) (%d+) ([01]) ?%d* ?%S*$')
  if not u then return false end
  u, t = tonumber(u), tonumber(t)
  if before(u, t, bucket.full_u, bucket.full_t) then
    -- How full it was meanwhile is not known: its receipts are worth nothing.
    bucket.had_receipts = flag == '1'
  else
    bucket.full_u, bucket.full_t = u, t
    load_receipts(bucket, flag)
  end
  return true
end

function token_bucket.fits(bucket, charge)
  local u, t = later(bucket.full_u, bucket.full_t, now_u, bucket.now_t)
  u, t = plus(u, t, charge[1], charge[2], bucket.base)
  local until_u, until_t = plus(now_u, bucket.now_t, charge[3], charge[4], bucket.base)
  return not before(until_u, until_t, u, t)
end

local function lacking(bucket)
  if not before(now_u, bucket.now_t, bucket.full_u, bucket.full_t) then return 0, 0 end
  return minus(bucket.full_u, bucket.full_t, now_u, bucket.now_t, bucket.base)
end

local function worth_nothing(receipt) return receipt[4] == 0 and receipt[5] == 0 end

-- Each receipt keeps the least shortfall from full since its grant.
local function note_shortfall(bucket)
  if #bucket.receipts == 0 then return end
  local u, t = lacking(bucket)
  for i = #bucket.receipts, 1, -1 do
    local receipt = bucket.receipts[i]
    if not before(u, t, receipt[4], receipt[5]) then break end
    receipt[4], receipt[5] = u, t
  end
  drop_oldest_while(bucket, worth_nothing)
end

function token_bucket.take(bucket, charge, id)
  note_shortfall(bucket)
  local u, t = later(bucket.full_u, bucket.full_t, now_u, bucket.now_t)
  bucket.full_u, bucket.full_t = plus(u, t, charge[1], charge[2], bucket.base)
  local lack_u, lack_t = lacking(bucket)
  open_receipt(bucket, id, charge[1], charge[2], lack_u, lack_t)
end

-- A forced debit: full again at most (most_u, most_t) from now, but not earlier than it is.
function token_bucket.force(bucket, charge, most_u, most_t, id)
  note_shortfall(bucket)
  local from_u, from_t = later(bucket.full_u, bucket.full_t, now_u, bucket.now_t)
  local u, t = plus(from_u, from_t, charge[1], charge[2], bucket.base)
  most_u, most_t = plus(now_u, bucket.now_t, most_u, most_t, bucket.base)
  if before(most_u, most_t, u, t) then u, t = later(most_u, most_t, from_u, from_t) end
  local counted_u, counted_t = minus(u, t, from_u, from_t, bucket.base)
  local rest_u, rest_t = minus(charge[1], charge[2], counted_u, counted_t, bucket.base)
  forgive(bucket, rest_u, rest_t, bucket.base)
  drop_oldest_while(bucket, worth_nothing)
  if counted_u > 0 or counted_t > 0 then
    bucket.full_u, bucket.full_t = u, t
    local lack_u, lack_t = lacking(bucket)
    open_receipt(bucket, id, counted_u, counted_t, lack_u, lack_t)
  end
  return counted_u, counted_t
end

function token_bucket.level(bucket, charge, reply)
  local u, t = lacking(bucket)
  local n = #reply
  reply[n + 1], reply[n + 2] = u, t
  for i = n + 3, n + 7 do reply[i] = 0 end
end

-- As refunds from the oldest on: each lowers the least shortfall of all newer receipts.
function token_bucket.refundable(bucket)
  note_shortfall(bucket)
  local u, t = 0, 0
  for _, receipt in ipairs(bucket.receipts) do
    u, t = plus(u, t, receipt[2], receipt[3], bucket.base)
    if before(receipt[4], receipt[5], u, t) then u, t = receipt[4], receipt[5] end
  end
  return #bucket.receipts, u, t
end

function token_bucket.refund(bucket, id)
  note_shortfall(bucket)
  local receipt, place = close_receipt(bucket, id)
  if not receipt then return nil end
  local u, t = receipt[2], receipt[3]
  if before(receipt[4], receipt[5], u, t) then u, t = receipt[4], receipt[5] end
  bucket.full_u, bucket.full_t = minus(bucket.full_u, bucket.full_t, u, t, bucket.base)
  -- Without that grant, what is given back was lacking at no moment since.
  local least_u, least_t = minus(receipt[4], receipt[5], u, t, bucket.base)
  for i, other in ipairs(bucket.receipts) do
    if i >= place then
      other[4], other[5] = minus(other[4], other[5], u, t, bucket.base)
    elseif before(least_u, least_t, other[4], other[5]) then
      other[4], other[5] = least_u, least_t
    end
  end
  drop_oldest_while(bucket, worth_nothing)
  return u, t
end

function token_bucket.save(bucket)
  local u = lacking(bucket)
  save_state(bucket, ttl_ms(u), bucket.full_u, bucket.full_t)
end

return token_bucket
