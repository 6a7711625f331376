"""An honest caller, in a process of its own, so that an attacker's work does not slow it down.

  honest_caller.py OPTIONS (JSON: address, limit, timeout_s, ca, batch, gzip; PYTHONPATH: the
  compiled protos)

Prints "ready" after a first call, and waits for a line on stdin. Then it acquires one permit,
waits 1 ms and so on, on one connection, until stdin closes, and prints what it saw as JSON. With
`batch`, it acquires so many in one call, and waits 10 ms. While a call is late no other is made:
those that were due meanwhile count too, as if they had waited for the rest of its time. Otherwise
one long stall would be a single call among many quick ones.
"""
import json
import select
import sys
import time

import grpc
from sluice.v1 import rate_limiter_pb2 as pb
from sluice.v1 import rate_limiter_pb2_grpc as pb_grpc

options = json.loads(sys.argv[1])
limit, timeout, count = options["limit"], options["timeout_s"], options["batch"]
pause_ms = 10 if count else 1
compression = grpc.Compression.Gzip if options["gzip"] else grpc.Compression.NoCompression
if options["ca"]:
    with open(options["ca"], "rb") as file:
        channel = grpc.secure_channel(options["address"], grpc.ssl_channel_credentials(file.read()),
                                      options=[("grpc.ssl_target_name_override", "localhost")])
else:
    channel = grpc.insecure_channel(options["address"])
stub = pb_grpc.RateLimiterStub(channel)
key = f"honest-{time.monotonic_ns()}"  # its own bucket, whoever called before
request = pb.AcquireRequest(charges=[pb.Charge(limit=limit, key=key)])
batch = pb.AcquireBatchRequest(acquisitions=[request] * count)
query = pb.QueryRequest(buckets=[pb.QueryRequest.Bucket(limit=limit, key=key)])


def left():
    return stub.Query(query, timeout=timeout).buckets[0].remaining


def acquire():
    """How many permits were granted."""
    if not count:
        return int(stub.Acquire(request, timeout=timeout).granted)
    results = stub.AcquireBatch(batch, timeout=timeout, compression=compression).results
    return sum(result.response.granted for result in results)


def call_first():
    """Returns what is left. On a busy machine a new Redis may take longer than its budget."""
    until = time.monotonic() + 10
    while True:
        try:
            stub.Acquire(request, timeout=timeout, wait_for_ready=True)
            remaining = left()
            if remaining > 0:  # else the server does not know
                return remaining
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                raise
        time.sleep(0.05)


before = call_first()
print("ready", flush=True)
sys.stdin.readline()

times_ms, calls, failed, granted, denied = [], 0, {}, 0, 0
while not select.select([sys.stdin], [], [], pause_ms / 1000)[0]:
    start = time.perf_counter()
    try:
        permits = acquire()
        granted += permits
        denied += max(count, 1) - permits
    except grpc.RpcError as e:
        failed[e.code().name] = failed.get(e.code().name, 0) + 1
    calls += 1
    late = (time.perf_counter() - start) * 1000
    while late > 0:
        times_ms.append(late)
        late -= pause_ms

try:
    lost = before - left() - granted
except grpc.RpcError:
    lost = None
times_ms.sort()
samples = len(times_ms)
print(json.dumps({
    "calls": calls,
    "p50": times_ms[samples // 2] if samples else float("inf"),
    "p99": times_ms[samples * 99 // 100] if samples else float("inf"),
    "max": times_ms[-1] if samples else float("inf"),
    "failed": failed,
    "denied": denied,
    "lost": lost,  # permits that were taken without a grant being answered; None: no answer
}))
