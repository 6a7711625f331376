-- The action lua.sluice_check LIMIT: asks Sluice for a permit for the key in txn.sluice_key.
-- Sets txn.sluice_status (0: no answer), txn.sluice_ratelimit, txn.sluice_ratelimit_policy and
-- txn.sluice_retry_after. haproxy.cfg decides what they mean.
local PROXY = "http://127.0.0.1:7209/v1/check?limit="

local function header(response, name)
  local values = response.headers and response.headers[name]
  return values and values[0] or values and values[1]
end

core.register_action("sluice_check", {"http-req"}, function(txn, limit)
  local key = txn:get_var("txn.sluice_key")
  local response = core.httpclient():get({
    url = PROXY .. limit,
    -- A header, not a part of the URL, where a client could add parameters to it.
    headers = {["host"] = {"localhost"}, ["sluice-key"] = {tostring(key or "")}},
    timeout = 200,
  })
  txn:set_var("txn.sluice_status", response and response.status or 0)
  for variable, name in pairs({ratelimit = "ratelimit", ratelimit_policy = "ratelimit-policy",
                               retry_after = "retry-after"}) do
    local value = response and header(response, name)
    if value then txn:set_var("txn.sluice_" .. variable, value) end
  end
end, 1)
