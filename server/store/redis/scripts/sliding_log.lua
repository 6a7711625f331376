-- Sliding logs by the rules of server/algorithm/sliding_log.h. Follows buckets.lua.
--
-- State: permits, last run (2 numbers, permits), latest moment seen (2 numbers). A run has the
-- moment of its permits, rounded up to a whole number of quanta.
local sliding_log = {}
local runs_at_once = 32
-- A log may have 65,537 runs, and a script must not hold Redis up for all of them. The time until
-- permits fit is searched in that many runs of a bucket; beyond them it is a lower bound.
local max_runs_searched = 2048
-- Expired runs that a denial removes, so that the next one need not look at them again.
local max_expired_kept = 256

local function parse_run(run)
  local u, n, permits = string.match(run, '^(%d+) (%d+) (%d+)$')
  return tonumber(u), tonumber(n), tonumber(permits)
end

-- Calls visit(u, n, permits) from the oldest run that still counts until it returns false.
local function each_run(bucket, visit)
  if bucket.total == 0 then return end
  local at = bucket.dropped
  while not bucket.cleared do
    local runs = redis.call('LRANGE', bucket.runs_key, at, at + runs_at_once - 1)
    for _, run in ipairs(runs) do
      if not visit(parse_run(run)) then return end
    end
    if #runs < runs_at_once then break end
    at = at + runs_at_once
  end
  for _, run in ipairs(bucket.pushed) do
    if not visit(run[1], run[2], run[3]) then return end
  end
  visit(bucket.last_u, bucket.last_n, bucket.last_permits)
end

local function expiry(bucket, u, n)
  return plus(u, n, bucket.period_u, bucket.period_n, 1000)
end

local function clear_log(bucket)
  bucket.cleared, bucket.dropped, bucket.pushed = true, 0, {}
  bucket.total, bucket.last_permits = 0, 0
  bucket.last_u, bucket.last_n = 0, 0
end

function sliding_log.load(bucket, rest)
  local numbers = bucket.numbers
  bucket.capacity = numbers[1]
  bucket.period_u, bucket.period_n, bucket.quantum = numbers[2], numbers[3], numbers[4]
  bucket.seen_u, bucket.seen_n = now_u, now_n
  bucket.receipts = {}
  bucket.searched = 0
  clear_log(bucket)
  if not rest then return true end
  local total, last_u, last_n, last_permits, seen_u, seen_n, flag =
    string.match(rest, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01])$')
  if not total then return false end
  bucket.total, bucket.last_permits = tonumber(total), tonumber(last_permits)
  bucket.last_u, bucket.last_n = tonumber(last_u), tonumber(last_n)
  bucket.seen_u, bucket.seen_n = later(now_u, now_n, tonumber(seen_u), tonumber(seen_n))
  bucket.cleared = false
  load_receipts(bucket, flag)
  -- Drops runs that no longer count.
  local last_expiry_u, last_expiry_n = expiry(bucket, bucket.last_u, bucket.last_n)
  if bucket.total == 0 or
     not before(bucket.seen_u, bucket.seen_n, last_expiry_u, last_expiry_n) then
    redis.call('LLEN', bucket.runs_key)  -- fails here, before any write, if it is no list
    clear_log(bucket)
    return true
  end
  local kept = bucket.total
  local dropped = 0
  each_run(bucket, function(u, n, permits)
    local expiry_u, expiry_n = expiry(bucket, u, n)
    if before(bucket.seen_u, bucket.seen_n, expiry_u, expiry_n) then return false end
    kept = kept - permits
    dropped = dropped + 1
    return true
  end)
  bucket.total, bucket.dropped = kept, dropped
  bucket.changed = dropped > max_expired_kept
  if kept == 0 then clear_log(bucket) end
  return true
end

function sliding_log.fits(bucket, charge)
  return fits(bucket.total, charge[1], bucket.capacity)
end

local function log_forgets(bucket)
  return function(receipt)
    local u, n = expiry(bucket, receipt[2], receipt[3])
    return bucket.total == 0 or not before(bucket.seen_u, bucket.seen_n, u, n)
  end
end

function sliding_log.take(bucket, charge, id)
  drop_oldest_while(bucket, log_forgets(bucket))
  -- Rounded up to a whole number of quanta. The rest of a division by whole microseconds is
  -- below the quantum, so that 1000 of it still fit.
  local rest = math.fmod(bucket.seen_u, bucket.quantum)
  rest = math.fmod(rest * 1000 + bucket.seen_n, bucket.quantum)
  local u, n = bucket.seen_u, bucket.seen_n
  if rest ~= 0 then
    local up = bucket.quantum - rest
    local up_u = floor(up / 1000)
    u, n = plus(u, n, up_u, up - up_u * 1000, 1000)
  end
  if bucket.total == 0 then
    clear_log(bucket)
    bucket.last_u, bucket.last_n, bucket.last_permits = u, n, charge[1]
  elseif not before(bucket.last_u, bucket.last_n, u, n) then
    bucket.last_permits = bucket.last_permits + charge[1]
  else
    bucket.pushed[#bucket.pushed + 1] = {bucket.last_u, bucket.last_n, bucket.last_permits}
    bucket.last_u, bucket.last_n, bucket.last_permits = u, n, charge[1]
  end
  bucket.total = bucket.total + charge[1]
  open_receipt(bucket, id, bucket.last_u, bucket.last_n, charge[1], 0)
end

function sliding_log.force(bucket, charge, most, _, id)
  drop_oldest_while(bucket, log_forgets(bucket))
  return force_count(bucket, charge, most, bucket.total, id)
end

-- The time until so many permits fit; -1: never.
local function log_wait(bucket, permits)
  if permits > bucket.capacity then return -1, 0 end
  local counted = bucket.total
  if fits(counted, permits, bucket.capacity) then return 0, 0 end
  local u, n
  each_run(bucket, function(run_u, run_n, of_run)
    if u and bucket.searched >= max_runs_searched then return false end
    bucket.searched = bucket.searched + 1
    u, n = run_u, run_n
    counted = counted - of_run
    return not fits(counted, permits, bucket.capacity)
  end)
  u, n = expiry(bucket, u, n)
  return minus(u, n, now_u, now_n, 1000)
end

function sliding_log.level(bucket, charge, reply)
  local reset_u, reset_n, next_u, next_n = 0, 0, 0, 0
  if bucket.total > 0 then
    if bucket.last_permits > 0 then
      local u, n = expiry(bucket, bucket.last_u, bucket.last_n)
      reset_u, reset_n = minus(u, n, now_u, now_n, 1000)
    else
      reset_u, reset_n = log_wait(bucket, bucket.capacity)
    end
  end
  if bucket.total >= bucket.capacity then next_u, next_n = log_wait(bucket, 1) end
  local wait_u, wait_n = 0, 0
  if not sliding_log.fits(bucket, charge) then wait_u, wait_n = log_wait(bucket, charge[1]) end
  for _, value in ipairs({bucket.total, reset_u, reset_n, wait_u, wait_n, next_u, next_n}) do
    reply[#reply + 1] = value
  end
end

function sliding_log.refundable(bucket)
  return counted_receipts(bucket, log_forgets(bucket), bucket.total)
end

function sliding_log.refund(bucket, id)
  drop_oldest_while(bucket, log_forgets(bucket))
  local receipt = close_receipt(bucket, id)
  if not receipt then return nil end
  local u, n, permits = receipt[2], receipt[3], receipt[4]
  local removed = 0
  local expiry_u, expiry_n = expiry(bucket, u, n)
  if bucket.total == 0 or not before(bucket.seen_u, bucket.seen_n, expiry_u, expiry_n) then
    return 0, 0
  end
  if u == bucket.last_u and n == bucket.last_n then
    removed = math.min(permits, bucket.last_permits)
    bucket.last_permits = bucket.last_permits - removed
  else
    local low, high = bucket.dropped, redis.call('LLEN', bucket.runs_key) - 1
    while low <= high do
      local at = floor((low + high) / 2)
      local run_u, run_n, of_run = parse_run(redis.call('LRANGE', bucket.runs_key, at, at)[1])
      if run_u == u and run_n == n then
        removed = math.min(permits, of_run)
        bucket.set_run = {at, string.format('%.0f %.0f %.0f', u, n, of_run - removed)}
        break
      end
      if before(run_u, run_n, u, n) then low = at + 1 else high = at - 1 end
    end
  end
  bucket.total = bucket.total - removed
  if bucket.total == 0 then clear_log(bucket) end
  return removed, 0
end

function sliding_log.save(bucket)
  local u, n = expiry(bucket, later(bucket.last_u, bucket.last_n, bucket.seen_u, bucket.seen_n))
  u = minus(u, n, now_u, now_n, 1000)
  local ttl = ttl_ms(u)
  if bucket.cleared then
    redis.call('DEL', bucket.runs_key)
  else
    if bucket.set_run then
      redis.call('LSET', bucket.runs_key, bucket.set_run[1], bucket.set_run[2])
    end
    if bucket.dropped > 0 then redis.call('LTRIM', bucket.runs_key, bucket.dropped, -1) end
  end
  for _, run in ipairs(bucket.pushed) do
    redis.call('RPUSH', bucket.runs_key, string.format('%.0f %.0f %.0f', run[1], run[2], run[3]))
  end
  redis.call('PEXPIRE', bucket.runs_key, number(ttl))
  save_state(bucket, ttl, bucket.total, bucket.last_u, bucket.last_n, bucket.last_permits,
    bucket.seen_u, bucket.seen_n)
end

return sliding_log
