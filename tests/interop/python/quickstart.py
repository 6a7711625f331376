"""Takes a permit. Arguments: LIMIT KEY. Exit codes: 0 granted, 1 denied, 3 no answer."""
import os
import sys

import grpc
from sluice.v1 import rate_limiter_pb2 as pb
from sluice.v1 import rate_limiter_pb2_grpc as rpc

channel = grpc.insecure_channel(os.environ.get("SLUICE_SERVER", "127.0.0.1:7200"))
client = rpc.RateLimiterStub(channel)  # thread-safe; one for the program
try:
    answer = client.Acquire(
        pb.AcquireRequest(charges=[pb.Charge(limit=sys.argv[1], key=sys.argv[2])]), timeout=1)
except grpc.RpcError as error:
    # Decide what your program does without an answer: go on, or refuse the work.
    print(f"error: {error.code().name}: {error.details()}")
    sys.exit(3)
if not answer.granted:
    print(f"denied; try again in {answer.retry_after.ToTimedelta().total_seconds():.0f} s")
    sys.exit(1)
print(f"granted; {answer.charges[0].remaining} left")
