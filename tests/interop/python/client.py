"""The interop scenarios with grpcio. Arguments: ADDRESS [CA_FILE]."""
import sys

import grpc
from sluice.v1 import rate_limiter_pb2 as pb
from sluice.v1 import rate_limiter_pb2_grpc as rpc

failed = False


def check(name, run):
    global failed
    try:
        run()
        print("ok", name)
    except Exception as error:  # any error fails the scenario
        failed = True
        print(f"FAILED {name}: {error!r}")


def charge(limit, key, permits=1):
    return pb.AcquireRequest(charges=[pb.Charge(limit=limit, key=key, permits=permits)])


def expect_error(call, code, text):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code and text in (error.details() or ""), error
        return
    raise AssertionError(f"no error; wanted {code}")


def main():
    address = sys.argv[1]
    if len(sys.argv) > 2:
        with open(sys.argv[2], "rb") as file:
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()))
        prefix = "python-tls"
    else:
        channel = grpc.insecure_channel(address)
        prefix = "python"
    client = rpc.RateLimiterStub(channel)

    def unary():
        first = client.Acquire(charge("hourly", prefix + "-unary", 3), timeout=10)
        assert first.granted and first.charges[0].remaining == 0 and first.charges[0].capacity == 3, first
        second = client.Acquire(charge("hourly", prefix + "-unary"), timeout=10)
        assert not second.granted and second.retry_after.seconds > 0, second

    def batch():
        answer = client.AcquireBatch(pb.AcquireBatchRequest(acquisitions=[
            charge("wide", prefix + "-batch"), charge("no-such-limit", ""),
            charge("wide", prefix + "-batch", 2)]), timeout=10)
        first, second, third = answer.results
        assert first.response.granted, answer
        assert second.error.code == 5 and "no-such-limit" in second.error.message, answer
        assert third.response.charges[0].remaining == 997, answer

    def stream():
        batches = (pb.AcquireBatchRequest(acquisitions=[charge("wide", prefix + "-stream")] * 5)
                   for _ in range(10))
        remaining = 1000
        for answer in client.AcquireStream(batches, timeout=10):
            for result in answer.results:
                remaining -= 1
                assert result.response.charges[0].remaining == remaining, result
        assert remaining == 950, remaining

    def watch(timeout):
        call = client.Watch(pb.WatchRequest(
            buckets=[pb.QueryRequest.Bucket(limit="hourly", key=prefix + "-watch")]), timeout=timeout)
        assert next(call).buckets[0].remaining == 3
        return call

    def deadline():
        call = watch(0.4)
        expect_error(lambda: next(call), grpc.StatusCode.DEADLINE_EXCEEDED, "")

    def cancel():
        call = watch(10)
        call.cancel()
        expect_error(lambda: next(call), grpc.StatusCode.CANCELLED, "")

    def error_text():
        expect_error(lambda: client.Acquire(charge("no-such-limit", ""), timeout=10),
                     grpc.StatusCode.NOT_FOUND, "no-such-limit")
        expect_error(lambda: client.Acquire(charge("wide", "k" * 513), timeout=10),
                     grpc.StatusCode.INVALID_ARGUMENT, "key")

    check("unary", unary)
    check("batch", batch)
    check("stream", stream)
    check("deadline", deadline)
    check("cancel", cancel)
    check("error text", error_text)
    sys.exit(1 if failed else 0)


main()
