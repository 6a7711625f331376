-- Decides acquisitions, in order, each with any number of charges, all or none.
--
--   KEYS     three of each bucket (buckets.lua), then those of the request ids
--   ARGV     time, number of buckets, the buckets, then for each acquisition:
--              id of its receipt ('0': none wanted), number of charges (negative: the caller would
--                wait), then for each charge: which bucket, counted from 0, and 4 numbers
--              If the number of charges ends with f, it is forced; with g, it gives back
--                (store.h, Debit). Then each charge has 7 words more: 2 numbers, the most that the
--                bucket may owe or count; 2 numbers, what one permit costs; the permits; the charges
--                before it that charge it in turn, counted from 1, separated by commas; and the
--                permits that its own request named (store.h, Acquisition::own)
--              If the number of charges ends with o (perhaps behind f or g), it has a request id.
--              Then two words follow at once: the number of the id among the keys, counted from 1
--              (negative: its grant may not be remembered), and the fingerprint of what is asked
--
-- Returns {microseconds, nanoseconds, then for each acquisition: 1 or 0 for granted, and for each
-- of its charges: 1 or 0 for whether it fitted, 7 numbers of its bucket afterwards, and if it was
-- forced or gave back 2 numbers, what was counted or given back}, or what load_buckets answers. -1
-- instead of 1 or 0 is the last number: that acquisition would wait, and neither it nor the later
-- ones were decided. 2: its request id was granted before; what is remembered of that grant
-- (wire/remembered_grant.h) follows, and 7 numbers for each charge. 3: its grant could not be
-- remembered, and nothing follows.
--
-- A shadow charge never denies: it is taken where it fits and the acquisition is granted.
local buckets, other = load_buckets()
if other then return other end

-- Decides a forced acquisition; the rules are those of ForcedShares (server/store/decide.h). Its
-- charges begin at argument i. Returns where they end and, if `remembers` and permits were
-- forgiven, what was counted of each bucket's charge.
local function force(id, count, gives_back, remembers, i, reply)
  -- count * (u, t), rounded to doubles where it is beyond 2^53: then it is more than any bucket
  -- holds.
  local function multiple(count, u, t, base)
    local product = count * t
    local carry = floor(product / base)
    return count * u + carry, product - carry * base
  end

  -- How often (unit_u, unit_t) fits into (u, t): less than 2^38 times, so the quotient of doubles
  -- is off by one at most.
  local function quotient(u, t, unit_u, unit_t, base)
    local count = floor((u * base + t) / (unit_u * base + unit_t))
    local whole_u, whole_t = multiple(count, unit_u, unit_t, base)
    if before(u, t, whole_u, whole_t) then return count - 1 end
    local more_u, more_t = multiple(count + 1, unit_u, unit_t, base)
    return before(u, t, more_u, more_t) and count or count + 1
  end

  local own, counted, taken = {}, {}, {}
  local of_buckets, forgives = {}, false
  for c = 1, count do
    local bucket = buckets[ARGV[i] + 1]
    local algorithm = bucket.algorithm
    local charge = {tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4])}
    local most_u, most_t = tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
    local unit_u, unit_t = tonumber(ARGV[i + 7]), tonumber(ARGV[i + 8])
    local permits, charged_by = tonumber(ARGV[i + 9]), ARGV[i + 10]
    own[c] = tonumber(ARGV[i + 11])
    i = i + 12
    reply[#reply + 1] = not bucket.closed and algorithm.fits(bucket, charge) and 1 or 0
    local a, b = 0, 0
    -- Those that are worth nothing any more are closed, also if nothing is counted.
    local had_receipts = #bucket.receipts > 0
    if gives_back then
      a = algorithm.give_back(bucket, permits)
    else
      local base = bucket.base or 1
      local share = permits
      for by in string.gmatch(charged_by, '%d+') do
        by = tonumber(by)
        counted[by] = counted[by] or quotient(unpack(taken[by]))
        share = share - math.min(share, own[by] - math.min(own[by], counted[by]))
      end
      local cost = charge
      if share < permits then cost = {multiple(share, unit_u, unit_t, base)} end
      a, b = algorithm.force(bucket, cost, most_u, most_t, id)
      taken[c] = {a, b, unit_u, unit_t, base}
      if remembers then
        counted[c] = quotient(a, b, unit_u, unit_t, base)
        of_buckets[ARGV[i - 12] + 1] = string.format('%.0f', counted[c])
        forgives = forgives or counted[c] < permits
      end
    end
    if a > 0 or b > 0 then
      bucket.changed = true
    elseif had_receipts then
      bucket.receipts_changed = true
    end
    algorithm.level(bucket, charge, reply)
    reply[#reply + 1] = a
    reply[#reply + 1] = b
  end
  return i, forgives and of_buckets or nil
end

-- What is remembered under the request ids, by their number. false: nothing.
local remembered, new_grants = {}, {}

local function once_key(number) return KEYS[3 * bucket_count + number] end

local function remember(once, id, counted)
  remembered[once.number] = once.fingerprint .. ' ' .. id .. ' 0' ..
    (counted and ' ' .. table.concat(counted, ',') or '')
  new_grants[#new_grants + 1] = once.number
end

-- Whether an acquisition is answered without a decision. Its charges are `width` arguments each.
local function is_answered(once, count, width, i, reply)
  local value = remembered[once.number]
  if value == nil then
    value = redis.call('GET', once_key(once.number))
    remembered[once.number] = value
  end
  if not value then
    if once.may_remember then return false end
    reply[#reply + 1] = 3
    return true
  end
  reply[#reply + 1] = 2
  reply[#reply + 1] = value
  for arg = i, i + (count - 1) * width, width do
    local bucket = buckets[ARGV[arg] + 1]
    local charge = {tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3]),
      tonumber(ARGV[arg + 4])}
    bucket.algorithm.level(bucket, charge, reply)
  end
  return true
end

local reply = {now_u, now_n}
local i = first_item_arg
while i <= #ARGV do
  local id, count = ARGV[i], tonumber(ARGV[i + 1])
  i = i + 2
  local how, once = '', nil
  if not count then
    local charges, o
    charges, how, o = string.match(ARGV[i - 1], '^(-?%d+)([fg]?)(o?)$')
    count = tonumber(charges)
    if o == 'o' then
      local number = tonumber(ARGV[i])
      once = {number = math.abs(number), may_remember = number > 0, fingerprint = ARGV[i + 1]}
      i = i + 2
    end
  end
  local charges = {}
  local granted = true
  local waits = count < 0
  if waits then count = -count end
  local forced = how ~= ''
  local width = forced and 12 or 5
  if once and is_answered(once, count, width, i, reply) then
    i = i + count * width
    count = 0
  elseif forced then
    reply[#reply + 1] = 1
    local counted
    i, counted = force(id, count, how == 'g', once ~= nil, i, reply)
    if once then remember(once, id, counted) end
    count = 0
  end
  for c = 1, count do
    local bucket = buckets[ARGV[i] + 1]
    local charge = {tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
      tonumber(ARGV[i + 4])}
    local fitting = not bucket.closed and bucket.algorithm.fits(bucket, charge)
    if not fitting and not bucket.shadow then granted = false end
    charges[c] = {bucket, charge, fitting}
    i = i + 5
  end
  if waits and not granted then
    reply[#reply + 1] = -1
    break
  end
  if count > 0 then
    reply[#reply + 1] = granted and 1 or 0
    if granted and once then remember(once, id) end
  end
  for _, one in ipairs(charges) do
    local bucket = one[1]
    if granted and one[3] then
      bucket.algorithm.take(bucket, one[2], id)
      bucket.changed = true
    end
    reply[#reply + 1] = one[3] and 1 or 0
    bucket.algorithm.level(bucket, one[2], reply)
  end
end

for _, bucket in ipairs(buckets) do
  if bucket.changed then
    bucket.algorithm.save(bucket)
  elseif bucket.receipts_changed then
    -- To save all would note that the log has seen the present time, which no decision did.
    keep_receipts(bucket)
  end
end
for _, number in ipairs(new_grants) do
  redis.call('SET', once_key(number), remembered[number], 'PX', 60000)
end
return reply
