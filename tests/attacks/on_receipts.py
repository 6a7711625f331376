"""Attacks with receipts, estimates, slots and request ids."""
import os
import random
import time

from http2 import GZIP, message
from limits import DAY_S
from on_work import keep_in_flight, storm
from run import acquire, acquire_batch, acquisition, attack, batch
from server import pb

ESTIMATE_S = 600


def estimates(stub, count, key="e", beside=()):
    """Receipts of so many acquisitions of one bucket, and of those `beside`, that are to be settled."""
    request = acquisition(("estimated", key, 1), *beside, settle_within_s=ESTIMATE_S)
    receipts = []
    while len(receipts) < count:
        results = stub.AcquireBatch(batch(request, min(4096, count - len(receipts))),
                                    timeout=30).results
        granted = [r.response.receipt for r in results if r.response.granted]
        if not granted:
            break
        receipts += granted
    return receipts


def settlements(receipts, permits=None, key="e"):
    actual = [pb.Charge(limit="estimated", key=key, permits=permits)] if permits else []
    return message(pb.SettleBatchRequest(settlements=[
        pb.SettleRequest(receipt=receipt, actual=actual) for receipt in receipts]), compress=True)


@attack()
def settle_garbage(run):
    """SettleBatch and Renew of 4096 receipts each, all wrong: each costs a MAC or more."""
    server = run.server()
    wrong = [os.urandom(8) * 12 for _ in range(64)] * 64
    bodies = [("SettleBatch", settlements(wrong)),
              ("Renew", message(pb.RenewRequest(receipts=wrong), compress=True))]
    sends = [keep_in_flight(method, body, count=32) for method, body in bodies]

    def do(attacker):
        for send in sends:
            send(attacker)

    storm(run, server.connect, do)


@attack()
def settle_large(run):
    """SettleBatch of the largest size: one settlement of two million empty actuals, unknown fields,
    and real receipts with 16 charges, whose answers are the largest."""
    server = run.server()
    stub = server.stub()
    charges = [(f"part{i}", "k" * 100) for i in range(16)]
    answer = stub.Acquire(acquisition(*charges, settle_within_s=ESTIMATE_S), timeout=5)
    empty = b"\x12\x00" * ((4 << 20) // 2 - 16)
    one = b"\x0a" + varint(len(empty)) + empty
    bodies = [message(one, compress=True), message(b"\x78\x01" * (2 << 20), compress=True),
              settlements([answer.receipt] * 1500)]
    sends = [keep_in_flight("SettleBatch", body, count=16) for body in bodies]

    def do(attacker):
        for send in sends:
            send(attacker)

    storm(run, server.connect, do)


@attack()
def renew_empty(run):
    """Renews of two million empty receipts each."""
    server = run.server()
    body = message(b"\x0a\x00" * (2 << 20), compress=True)
    storm(run, server.connect, keep_in_flight("Renew", body, count=16))


@attack(redis=True)
def settle_pending(run):
    """With Redis: SettleBatches of 4096 equal receipts, which Redis settles one after the other,
    many in flight on many connections."""
    server = run.server(redis=True)
    body = settlements(estimates(server.stub(), 1) * 4096)
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for attacker in attackers:
            if len(attacker.calls) < 200:
                attacker.call("SettleBatch", body, GZIP, seconds=0.1)
            attacker.read()
    run.note(f"{sum(len(a.calls) for a in attackers)} calls open")
    run.sent(attackers)
    run.rss(256)
    for attacker in attackers:
        attacker.close()
    run.released("after they left")
    run.end()


@attack()
def query_estimates(run):
    """Queries that name one bucket with 65,536 open estimates 256 times."""
    server = run.server()
    run.note(f"{len(estimates(server.stub(), 65_536))} estimates")
    asked = [pb.QueryRequest.Bucket(limit="estimated", key="e")] * 256
    body = message(pb.QueryRequest(buckets=asked), compress=True)
    storm(run, server.connect, keep_in_flight("Query", body, count=8))


@attack()
def settle_out_of_order(run):
    """Settles 60,400 estimates of one bucket, among which one was booked, so that its receipt is out
    of order."""
    server = run.server()
    stub = server.stub()
    whole = stub.Acquire(acquisition(("estimated", "e", 499_950), receipt=True), timeout=5)
    booked = stub.Acquire(
        acquisition(("estimated", "e", 300), wait_s=60, settle_within_s=ESTIMATE_S), timeout=5)
    stub.Refund(pb.RefundRequest(receipt=whole.receipt), timeout=5)
    # Of another set of buckets, since callers of the same set do not pass one that is booked.
    beside = (("big", "e", 1),)
    receipts = estimates(stub, 60_000, beside=beside)
    run.note(f"{len(receipts)} estimates, one booked {booked.wait.ToMilliseconds()} ms ahead")
    time.sleep(booked.wait.ToMilliseconds() / 1000 + 0.5)
    receipts += estimates(stub, 400, beside=beside)
    assert len(receipts) == 60_400, len(receipts)
    random.Random(1).shuffle(receipts)
    run.begin()
    attacker = server.connect()
    for at in range(0, len(receipts), 4096):
        attacker.call("SettleBatch", settlements(receipts[at:at + 4096]), GZIP)
        attacker.read()
    attacker.wait(30)
    run.sent(attacker)
    run.end()


@attack()
def slot_holds(run):
    """Queries that name one bucket with 262,144 slots in use 256 times, while and after they end."""
    server = run.server()
    body = message(batch(acquisition(("slots", "s"))), compress=True)
    filler = server.connect()
    for _ in range(run.n(64)):
        filler.call("AcquireBatch", body, GZIP)
        filler.read()
    filler.wait(20)
    asked = [pb.QueryRequest.Bucket(limit="slots", key="s")] * 256
    query = message(pb.QueryRequest(buckets=asked), compress=True)
    storm(run, server.connect, keep_in_flight("Query", query, count=8), for_s=10)


@attack()
def request_id_flood(run):
    """Five connections remember as many grants under request ids as they may, of three limits. Then a
    caller over a new connection asks with ids."""
    server = run.server("--memory_limit=128MiB")
    run.begin()
    attackers = [server.connect() for _ in range(5)]
    rng = random.Random(1)
    for i in range(run.n(60)):
        limit = ("big", "booked", "estimated")[i % 3]
        one = acquisition((limit, "r"))
        request = batch(one)
        for acquired in request.acquisitions:
            acquired.request_id = rng.randbytes(16)
        attackers[i % 5].call("AcquireBatch", message(request))
        attackers[i % 5].read()
    for attacker in attackers:
        attacker.wait(10)
    stub = server.stub()
    granted = 0
    for _ in range(100):
        request = acquisition(("daily", "honest"))
        request.request_id = rng.randbytes(16)
        granted += stub.AcquireBatch(pb.AcquireBatchRequest(acquisitions=[request]),
                                     timeout=5).results[0].response.granted
    run.check(granted == 100, f"{granted} of 100 calls with ids granted", "all granted")
    run.sent(attackers)
    run.end()


@attack()
def bookings_at_all_bounds(run):
    """Five connections book as much as they may of three limits. Then a caller over a new connection
    books another one."""
    server = run.server()
    run.begin()
    attackers = [server.connect() for _ in range(5)]
    until = time.monotonic() + 20
    for i in range(run.n(350)):
        limit = ("booked", "p1", "p2")[i % 3]
        body = message(batch(acquisition((limit, f"b{i % 12}", 10), wait_s=DAY_S)), compress=True)
        attackers[i % 5].call("AcquireBatch", body, GZIP, seconds=5)
        attackers[i % 5].read()
        if time.monotonic() > until:
            break
    for attacker in attackers:
        attacker.wait(10)
    stub = server.stub()
    acquire_batch(run, stub, ("part0", "honest", 10), count=1)
    booked = [acquire(run, stub, ("part0", "honest", 10), wait_s=600) for _ in range(100)]
    granted = sum(answer.granted for answer in booked)
    run.check(granted == 100, f"{granted} of 100 bookings granted", "all granted")
    run.sent(attackers)
    run.end()


# ---- Reflection, which all may call

def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def reflection_request(field, name):
    return bytes([field << 3 | 2]) + varint(len(name)) + name


FILE_BY_FILENAME, FILE_CONTAINING_SYMBOL = 3, 4
REFLECTION = "grpc.reflection.v1.ServerReflection"


@attack()
def reflection_symbols(run):
    """Asks server reflection for a symbol of a million parts, and for unknown fields."""
    server = run.server()
    longest = reflection_request(FILE_CONTAINING_SYMBOL, b"a." * ((2 << 20) - 16))
    fitting = reflection_request(FILE_CONTAINING_SYMBOL, b"a." * 2000)
    unknown = b"\x78\x01" * (2 << 20)
    bodies = [message(body, compress=True) for body in (longest, fitting, unknown)]

    def do(attacker):
        for body in bodies:
            if len(attacker.calls) < 32:
                attacker.call("ServerReflectionInfo", body, GZIP, service=REFLECTION)
        attacker.read(0 if len(attacker.calls) < 32 else 0.1)

    storm(run, server.connect, do)


@attack()
def reflection_names(run):
    """Asks server reflection for thousands of invented files and symbols."""
    server = run.server()
    run.begin()
    attacker = server.connect()
    stream = attacker.open("ServerReflectionInfo", service=REFLECTION)
    for i in range(run.n(20_000)):
        name = f"{i:07}".encode() * 285
        for field in (FILE_BY_FILENAME, FILE_CONTAINING_SYMBOL):
            attacker.send(stream, message(reflection_request(field, name)), seconds=1)
        attacker.read()
    attacker.read_until_quiet(1)
    run.sent(attacker)
    run.rss(32)
    attacker.close()
    run.released("after it left")
    run.end()
