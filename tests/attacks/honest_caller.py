"""An honest caller, in a process of its own, so that an attacker's work does not slow it down.

  honest_caller.py OPTIONS (JSON: address, limit, timeout_s, ca; PYTHONPATH: the compiled protos)

Prints "ready" after a first call, and waits for a line on stdin. Then it acquires one permit,
waits 1 ms and so on, on one connection, until stdin closes, and prints what it saw as JSON.
While a call is late no other is made: those that were due meanwhile count too, as if they had
waited for the rest of its time. Otherwise one long stall would be a single call among many quick
ones.
"""
import json
import select
import sys
import time

import grpc
from sluice.v1 import rate_limiter_pb2 as pb
from sluice.v1 import rate_limiter_pb2_grpc as pb_grpc

PAUSE_MS = 1

options = json.loads(sys.argv[1])
limit, timeout = options["limit"], options["timeout_s"]
if options["ca"]:
    with open(options["ca"], "rb") as file:
        channel = grpc.secure_channel(options["address"], grpc.ssl_channel_credentials(file.read()),
                                      options=[("grpc.ssl_target_name_override", "localhost")])
else:
    channel = grpc.insecure_channel(options["address"])
stub = pb_grpc.RateLimiterStub(channel)
key = f"honest-{time.monotonic_ns()}"  # its own bucket, whoever called before
request = pb.AcquireRequest(charges=[pb.Charge(limit=limit, key=key)])
query = pb.QueryRequest(buckets=[pb.QueryRequest.Bucket(limit=limit, key=key)])


def left():
    return stub.Query(query, timeout=timeout).buckets[0].remaining


stub.Acquire(request, timeout=timeout, wait_for_ready=True)
before = left()
print("ready", flush=True)
sys.stdin.readline()

times_ms, calls, failed, granted, denied = [], 0, {}, 0, 0
while not select.select([sys.stdin], [], [], PAUSE_MS / 1000)[0]:
    start = time.perf_counter()
    try:
        if stub.Acquire(request, timeout=timeout).granted:
            granted += 1
        else:
            denied += 1
    except grpc.RpcError as e:
        failed[e.code().name] = failed.get(e.code().name, 0) + 1
    calls += 1
    late = (time.perf_counter() - start) * 1000
    while late > 0:
        times_ms.append(late)
        late -= PAUSE_MS

try:
    lost = before - left() - granted
except grpc.RpcError:
    lost = None
times_ms.sort()
count = len(times_ms)
print(json.dumps({
    "calls": calls,
    "p50": times_ms[count // 2] if count else float("inf"),
    "p99": times_ms[count * 99 // 100] if count else float("inf"),
    "max": times_ms[-1] if count else float("inf"),
    "failed": failed,
    "denied": denied,
    "lost": lost,  # permits that were taken without a grant being answered; None: no answer
}))
