-- Loads the buckets of a script. Follows the algorithms.

local defined = {}
local function algorithm_of(kind)
  local algorithm = defined[kind] or definitions[kind]()
  defined[kind] = algorithm
  return algorithm
end

-- Loads all buckets that KEYS and ARGV name. Returns them; or nil, and what to answer instead,
-- {-1, which bucket, counted from 0}: it has other parameters, or is not ours. {-2, which bucket}:
-- it holds bookings. The caller has to read it and to decide (exchange.lua).
local function load_buckets()
  local buckets = {}
  for i = 1, bucket_count do
    local arg = first_bucket_arg + (i - 1) * args_per_bucket
    local bucket = {
      key = KEYS[3 * i - 2], runs_key = KEYS[3 * i - 1], receipts_key = KEYS[3 * i],
      kind = ARGV[arg], algorithm = algorithm_of(ARGV[arg]),
      parameters = ARGV[arg + 1], writer = ARGV[arg + 2],
      shadow = ARGV[arg + 3] == '1', numbers = {},
      floor_u = tonumber(ARGV[arg + 10]), floor_n = tonumber(ARGV[arg + 11]),
    }
    -- Of a token bucket the first one counts.
    for j = 1, bucket.kind == 't' and 1 or 6 do bucket.numbers[j] = tonumber(ARGV[arg + 3 + j]) end
    local value = redis.call('GET', bucket.key)
    local rest
    if value then
      bucket.exists = true
      local parameters, writer, words = string.match(value, '^(%S+) (%S+) (.*)$')
      rest = words
      if rest and string.byte(rest) == 64 then return nil, {-2, i - 1} end  -- '@'
      if parameters ~= bucket.parameters then rest = false end
      bucket.writer = writer
    else
      -- A negative floor is of missing buckets alone.
      bucket.floor_u = math.abs(bucket.floor_u)
    end
    if rest == false or (value and not rest) or not bucket.algorithm.load(bucket, rest) then
      return nil, {-1, i - 1}
    end
    bucket.closed = bucket.kind ~= 't' and
      before(now_u, now_n, bucket.floor_u, bucket.floor_n)
    buckets[i] = bucket
  end
  return buckets
end

local first_item_arg = first_bucket_arg + bucket_count * args_per_bucket
