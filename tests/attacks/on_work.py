"""Attacks on the processor: few bytes that make an event loop work for long."""
import http.client
import itertools
import json
import math
import select
import socket
import ssl
import struct
import tempfile
import threading
import time

import grpc

from http2 import (CONTINUATION, DATA, END_HEADERS, END_STREAM, GZIP, HEADERS, MAX_WINDOW, PREFACE,
                   SETTINGS, connect, frame, message, settings, window_update)
from limits import DAY_S, LOG_PERIOD_S
from on_http import close, post
from on_ports import HONEST, clients_file, tls_by_hand
from run import acquire_batch, acquisition, attack, batch, batch_message, buckets
from server import HonestCaller, admin_grpc, admin_pb, pb
from tls13 import Records

SIXTEEN = [("big", f"{i:x}") for i in range(16)]


def storm(run, connect, do, for_s=6):
    """Three attackers, each in a thread, do(attacker) again and again. One that the server closes
    connects again. Judges the latency of honest callers meanwhile."""
    run.begin()
    until = time.monotonic() + for_s
    attackers = []

    def repeat():
        attacker = None
        while time.monotonic() < until:
            try:
                if attacker is None or attacker.ended:
                    attacker = connect()
                    attackers.append(attacker)
                do(attacker)
            except OSError:  # the server refuses connections
                time.sleep(0.05)

    threads = [threading.Thread(target=repeat) for _ in range(run.n(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.sent(attackers)
    run.end(p50=10)


def keep_in_flight(method, body, count=64, extra=GZIP):
    def do(attacker):
        if len(attacker.calls) < count:
            attacker.call(method, body, extra)
        attacker.read(0 if len(attacker.calls) < count else 0.1)
    return do


def open_and_reset(method, body):
    def do(attacker):
        stream = attacker.open(method, GZIP)
        attacker.send(stream, body, end=True)
        attacker.reset(stream)
        attacker.read()
    return do


@attack()
def log_denial(run):
    """Fills a sliding_log with single permits, then sends batches that it denies, pipelined."""
    server = run.server(honest_timeout_s=40)
    # A log tells moments apart by 1/65536 of its period: one permit in each is the longest log.
    filler = server.connect(ledger=run.ledger)
    stream = filler.open("AcquireStream")
    one = batch_message(("log", "a"), count=1, compress=False)
    start = time.monotonic()
    for i in range(65536):
        time.sleep(max(0, start + i * LOG_PERIOD_S / 65536 - time.monotonic()))
        filler.send(stream, one)
        filler.read()
    body = batch_message(("log", "a", 100000))
    run.begin()
    attacker = server.connect(ledger=run.ledger)
    stream = attacker.open("AcquireStream", GZIP)
    for _ in range(run.n(200)):
        attacker.send(stream, body)
    until = time.monotonic() + 15
    while attacker.read(3) and time.monotonic() < until:
        pass
    run.sent(attacker)
    run.end()


@attack()
def window_denial(run):
    """Batches that a sliding_window of 100 sub-windows and a log deny, with max_wait and
    without."""
    server = run.server()
    stub = server.stub()
    for limit in ("subwindows", "log"):
        acquire_batch(run, stub, (limit, "w", 50), count=2000)
    bodies = [batch_message((limit, "w", 90_000), wait_s=wait_s)
              for limit in ("subwindows", "log") for wait_s in (0, 1)]
    run.begin()
    attacker = server.connect(ledger=run.ledger)
    streams = [attacker.open("AcquireStream", GZIP) for _ in range(4)]
    for _ in range(run.n(20)):
        for stream, body in zip(streams, bodies):
            attacker.send(stream, body)
        attacker.read()
    attacker.read_until_quiet(2, at_most_s=10)
    run.sent(attacker)
    run.end()


@attack()
def joint_gaps(run):
    """Books two buckets far ahead so that the gaps of one never meet the gaps of the other, then
    asks for both, 4096 times in one message."""
    server = run.server()
    stub = server.stub()
    for limit, first in (("p1", 20), ("p2", 21)):
        book_with_gaps(stub, limit, first, run.n(2200, at_most=4000))
    run.begin()
    time.sleep(0.5)
    attacker = server.connect()
    body = batch_message(("p1", "k", 10), ("p2", "k", 10))
    attacker.call("AcquireBatch", body, GZIP)
    attacker.wait(30)
    time.sleep(0.5)
    run.note(f"one message of {len(body)} bytes")
    run.end(max=50)


def book_with_gaps(stub, limit, first, last):
    """Books 4096 grant times of one bucket, and gives every other one back."""
    request = batch(acquisition((limit, "k", 10), wait_s=DAY_S))
    results = stub.AcquireBatch(request, timeout=30).results
    booked = [r.response for r in results if r.response.granted]
    refunds = [
        stub.Refund.future(pb.RefundRequest(receipt=b.receipt)) for b in booked[first:last:2]
    ]
    for refund in refunds:
        refund.exception()  # waits


@attack()
def joint_sixteen(run):
    """The same with 16 buckets: only the last one's gaps never meet those of the others."""
    server = run.server()
    stub = server.stub()
    for i in range(16):
        book_with_gaps(stub, f"part{i}", 21 if i == 15 else 20, run.n(600, at_most=4000))
    body = batch_message(*((f"part{i}", "k", 10) for i in range(16)), wait_s=DAY_S)
    no_wait = batch_message(*((f"part{i}", "k", 10) for i in range(16)))
    run.begin()
    attacker = server.connect()
    for _ in range(3):
        attacker.call("AcquireBatch", no_wait, GZIP)
        attacker.call("AcquireBatch", body, GZIP)
    attacker.wait(20)
    run.sent(attacker)
    run.end()


@attack()
def refunds_in_a_row(run):
    """Gives back bookings from the first to the last, so that each refund may move up all
    others."""
    server = run.server()
    stub = server.stub()
    results = stub.AcquireBatch(batch(acquisition(("p1", "r", 10), ("p2", "r", 10), wait_s=DAY_S),
                                      run.n(4096, at_most=4096)), timeout=30).results
    receipts = [r.response.receipt for r in results if r.response.granted]
    run.begin()
    attacker = server.connect()
    for receipt in receipts:
        attacker.call("Refund", message(pb.RefundRequest(receipt=receipt)))
        attacker.read()
    attacker.wait(10)
    run.note(f"{len(receipts)} refunds")
    run.end()


def hold(run, server, limit, wait_s=DAY_S):
    """Connections with a thousand calls each that wait for one bucket."""
    body = message(acquisition((limit, "held"), wait_s=wait_s, hold=True))
    attackers = []
    for _ in range(run.n(10)):
        attacker = server.connect()
        attackers.append(attacker)
        for _ in range(1000):
            if not attacker.call("Acquire", body, seconds=1):
                break
        attacker.read()
    run.note(f"{sum(len(a.calls) for a in attackers)} calls held")
    return attackers


def read_until_answered(attackers, until):
    while time.monotonic() < until and any(a.calls and not a.ended for a in attackers):
        for attacker in attackers:
            attacker.read(0.01)


@attack()
def deadline_burst(run):
    """Thousands of open streams whose deadlines pass at the same moment."""
    server = run.server()
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    passes = time.monotonic() + 5
    for attacker in attackers:
        for _ in range(1000):
            left = max(1, round((passes - time.monotonic()) * 1000))
            attacker.open("AcquireStream", (("grpc-timeout", f"{left}m"),))
        attacker.read()
    run.note(f"{sum(len(a.calls) for a in attackers)} streams open")
    read_until_answered(attackers, passes + 2)
    run.sent(attackers)
    run.released("after the deadlines", attackers)
    run.end()


@attack()
def deadlines_of_closed_connections(run):
    """Connections that are closed while the deadlines of their thousand open calls pass."""
    server = run.server()
    run.begin()
    closed = []
    for _ in range(run.n(10)):
        attackers = [server.connect() for _ in range(10)]
        passes = time.monotonic() + 1
        for attacker in attackers:
            left = round((passes - time.monotonic()) * 1e6)
            attacker.write(b"".join(
                attacker.head("AcquireStream", (("grpc-timeout", f"{left + i * 100}u"),))[1]
                for i in range(1000)))
        time.sleep(max(0, passes + 0.02 - time.monotonic()))
        for attacker in attackers:
            attacker.close()  # a part of the deadlines has passed
        closed += attackers
    run.sent(closed)
    run.released("after the ends", closed)
    run.end()


@attack()
def grant_burst(run):
    """Thousands of held calls whose grant times are the same moment, the start of a window."""
    server = run.server()
    stub = server.stub()
    run.begin()
    acquire_batch(run, stub, ("bursts", "held", 20_000), count=1)
    attackers = hold(run, server, "bursts", wait_s=60)
    read_until_answered(attackers, time.monotonic() + 8)
    run.sent(attackers)
    run.released("after the grants", attackers)
    run.end()


@attack()
def rebooking(run):
    """Changes a limit again and again while thousands of calls wait for one of its buckets."""
    server = run.server()
    run.begin()
    attackers = hold(run, server, "p2")
    admin = admin_grpc.LimitAdminStub(grpc.insecure_channel(server.admin))
    answered = 0
    for i in range(20):
        limit = admin_pb.Limit(name="p2", rate=admin_pb.Rate(permits=9 + i % 3))
        if "max_wait" in limit.DESCRIPTOR.fields_by_name:
            limit.max_wait.FromSeconds(DAY_S)
        try:
            admin.PutLimit(admin_pb.PutLimitRequest(limit=limit), timeout=5)
            answered += 1
        except grpc.RpcError:
            pass
        for attacker in attackers:
            attacker.read(0.01)
    run.check(answered == 20, f"{answered} of 20 changes answered", "all changes answered")
    for attacker in attackers:
        attacker.close()
    run.released("after they left")
    run.end()


@attack()
def convert_buckets(run):
    """Books buckets to their bound. Then their limits change, and the next call converts them."""
    server = run.server()
    admin = admin_grpc.LimitAdminStub(grpc.insecure_channel(server.admin))
    token, log = admin_pb.ALGORITHM_TOKEN_BUCKET, admin_pb.ALGORITHM_SLIDING_LOG
    changes = ((token, token), (log, log), (token, log), (log, token))

    def put(i, algorithm, permits):
        limit = admin_pb.Limit(name=f"converted{i}", algorithm=algorithm,
                               rate=admin_pb.Rate(permits=permits))
        limit.max_wait.FromSeconds(DAY_S)
        admin.PutLimit(admin_pb.PutLimitRequest(limit=limit), timeout=5)

    stubs = [server.stub() for _ in changes]  # each connection has a bound of its own
    booked = 0
    for i, (before, _) in enumerate(changes):
        put(i, before, 10)
        request = batch(acquisition((f"converted{i}", "k"), wait_s=DAY_S))
        for _ in range(run.n(32, at_most=32)):
            results = stubs[i].AcquireBatch(request, timeout=30).results
            booked += sum(r.response.granted for r in results)
    run.begin()
    decided = 0
    for i, (_, after) in enumerate(changes):
        put(i, after, 11)
        request = acquisition((f"converted{i}", "k"))
        decided += not stubs[i].Acquire(request, timeout=10).granted
    run.note(f"{booked} bookings")
    run.check(decided == len(changes), f"{decided} of {len(changes)} denied after the change",
              "all denied, since what was booked stands")
    run.end()


@attack()
def gzip_cpu(run):
    """Three connections keep 64 calls each in flight; a message of 2.7 KB expands to 65,536
    charges."""
    server = run.server()
    run.watch_honest_alone()
    body = batch_message(*SIXTEEN)
    storm(run, lambda: server.connect(ledger=run.ledger), keep_in_flight("AcquireBatch", body),
          for_s=10)


@attack()
def large_messages(run):
    """A hundred connections of one address repeat messages of 2.7 KB that expand to 65,536 charges.
    Others send batches of 200, compressed and not."""
    server = run.server()
    body = batch_message(*SIXTEEN)
    kinds = () if run.shared else (False, True)
    callers = [HonestCaller(server, batch=200, gzip=gzip) for gzip in kinds]
    run.begin()
    for caller in callers:
        caller.begin()
    attackers = [server.connect(source="127.0.0.2", ledger=run.ledger)
                 for _ in range(run.n(100, at_most=run.most_files))]
    do = keep_in_flight("AcquireBatch", body, count=2)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for attacker in attackers:
            if len(attacker.calls) < 2:
                do(attacker)
            attacker.read()
    run.sent(attackers)
    # A compressed one waits for two of the attackers' messages, 20 ms each, at most.
    for gzip, caller in zip(kinds, callers):
        run.judge_honest(caller.end(), {"p99": 250 if gzip else 50},
                         "compressed batches" if gzip else "batches")
    run.end()


@attack()
def gzip_garbage(run):
    """Compressed messages that are large and turn out to be invalid at their last field."""
    server = run.server()
    good = batch(acquisition(*SIXTEEN)).SerializeToString()
    body = message(good + b"\x0a\xff\xff\xff\xff\x0f", compress=True)
    storm(run, server.connect, keep_in_flight("AcquireBatch", body))


def deflated(fields):
    """The bytes of (value, bits): DEFLATE fills each byte from its least significant bit."""
    value = at = 0
    for field, bits in fields:
        value |= field << at
        at += bits
    return value.to_bytes((at + 7) // 8, "little")


# A block that expands to nothing, and for which zlib builds two tables (RFC 1951, 3.2.7). It is not
# the last and has codes of its own: 257 for literals and one for distances, whose lengths have
# codes themselves. Of these, 18 (a run of zeros) and 1 have one bit, in the order of the RFC. Then:
# 138 zeros, 118 zeros, a code for the end of the block, one for a distance, and the end.
EMPTY_BLOCK = ((0, 1), (2, 2), (0, 5), (0, 5), (14, 4),
               *((int(length in (18, 1)), 3)
                 for length in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)),
               (1, 1), (127, 7), (1, 1), (107, 7), (0, 1), (0, 1), (0, 1))
FOUR_EMPTY_BLOCKS = deflated(EMPTY_BLOCK * 4)  # 45 bytes
GZIP_HEAD = b"\x1f\x8b\x08\0" + bytes(5) + b"\xff"
GZIP_HEAD_OF_NAME = b"\x1f\x8b\x08\x08" + bytes(5) + b"\xff"
GZIP_TAIL = b"\x03\0" + bytes(8)  # the last block, which is empty too; CRC and length of nothing


def compressed(body):
    """The message with these bytes of gzip."""
    return struct.pack(">BI", 1, len(body)) + body


def empty_blocks(size):
    """A message of nearly so many bytes that expands to nothing."""
    count = (size - len(GZIP_HEAD) - len(GZIP_TAIL)) // len(FOUR_EMPTY_BLOCKS)
    return compressed(GZIP_HEAD + FOUR_EMPTY_BLOCKS * count + GZIP_TAIL)


@attack()
def gzip_empty_blocks(run):
    """Compressed messages that expand to nothing: 4 MB of 372,000 empty blocks; 3 and 4 KB of such
    blocks, pipelined on a stream; and a header with a file name of 3 MB."""
    server = run.server()
    large = empty_blocks(4 << 20)
    small = empty_blocks(3 << 10) + empty_blocks(4 << 10)
    name = compressed(GZIP_HEAD_OF_NAME + b"n" * (3 << 20) + b"\0" + GZIP_TAIL)
    methods = itertools.cycle(("AcquireBatch", "AcquireStream", "Renew"))

    def send_large(attacker):
        keep_in_flight(next(methods), large, count=2)(attacker)

    def send_small(attacker):
        if attacker.stream not in attacker.calls:
            attacker.stream = attacker.open("AcquireStream", GZIP)
        if not attacker.send(attacker.stream, small * 16, seconds=1):
            attacker.reset(attacker.stream)
        attacker.read()

    # One of each for the three attackers.
    kinds = itertools.cycle((send_large, send_small, keep_in_flight("AcquireBatch", name, count=2)))

    def connect_one():
        attacker = server.connect()
        attacker.stream = 0
        attacker.kind = next(kinds)
        return attacker

    storm(run, connect_one, lambda attacker: attacker.kind(attacker))


@attack()
def reset_batches(run):
    """Sends the largest batches and resets each call at once, so that no bound on open calls
    counts."""
    server = run.server()
    body = batch_message(*SIXTEEN)
    storm(run, server.connect, open_and_reset("AcquireBatch", body))


@attack()
def query_flood(run):
    """Queries of 256 buckets with long keys, compressed, many in flight."""
    server = run.server()
    body = message(pb.QueryRequest(buckets=buckets("daily", 256)), compress=True)
    storm(run, server.connect, keep_in_flight("Query", body))


@attack()
def query_booked(run):
    """Queries of buckets with many bookings, whose state is the most work to tell."""
    server = run.server()
    stub = server.stub()
    for i in range(16):
        acquire_batch(run, stub, (f"part{i}", "q", 10), wait_s=DAY_S)
    asked = [pb.QueryRequest.Bucket(limit=f"part{i % 16}", key="q") for i in range(256)]
    body = message(pb.QueryRequest(buckets=asked), compress=True)
    storm(run, server.connect, keep_in_flight("Query", body))


@attack()
def watch_storm(run):
    """Watches with the shortest interval of 256 buckets that change all the time."""
    server = run.server()
    watch = pb.WatchRequest(buckets=buckets("big", 256, key_bytes=8))
    watch.min_interval.FromMilliseconds(10)
    body = message(watch, compress=True)
    change = message(pb.AcquireBatchRequest(acquisitions=[
        acquisition(("big", bucket.key)) for bucket in watch.buckets]), compress=True)
    run.begin()
    attacker = server.connect()
    for _ in range(run.n(100)):
        attacker.call("Watch", body, GZIP)
        attacker.read()
    stream = attacker.open("AcquireStream", GZIP)
    until = time.monotonic() + 6
    while time.monotonic() < until and not attacker.ended:
        attacker.send(stream, change, seconds=1)
        attacker.read(0.01)
    run.sent(attacker)
    run.end(p50=10)


@attack()
def watch_churn(run):
    """Opens Watches of 256 buckets and cancels them at once."""
    server = run.server()
    body = message(pb.WatchRequest(buckets=buckets("daily", 256)), compress=True)
    storm(run, server.connect, open_and_reset("Watch", body))


@attack()
def watch_empty_buckets(run):
    """Watches of 131,072 empty buckets, in a few hundred bytes."""
    server = run.server()
    body = message(b"\x0a\x00" * 131_072, compress=True)
    storm(run, server.connect, keep_in_flight("Watch", body))


@attack()
def window_changes(run):
    """Changes the initial window again and again while hundreds of calls wait to send."""
    server = run.server()
    body = batch_message(("api", "k"), count=64)

    def connect():
        attacker = server.connect(window=0)
        for _ in range(900):
            if not attacker.call("AcquireBatch", body, GZIP, seconds=1):
                break
        return attacker

    def do(attacker):
        for n in range(4):
            attacker.write(settings(initial_window=n & 1), seconds=1)
        attacker.read(0.02)

    storm(run, connect, do)


@attack()
def one_byte_windows(run):
    """Takes large answers byte by byte: each WINDOW_UPDATE lets one byte of one call leave."""
    server = run.server()
    body = batch_message(("api", "k"), count=256)

    def connect():
        attacker = server.connect(window=0)
        attacker.write(window_update(0, MAX_WINDOW - 65535))
        for _ in range(50):
            attacker.call("AcquireBatch", body, GZIP, seconds=1)
        return attacker

    def do(attacker):
        attacker.write(b"".join(window_update(stream, 1) for stream in sorted(attacker.calls)),
                       seconds=1)
        attacker.read(0.001)

    storm(run, connect, do)


# HPACK: inserts a field whose name fills the table; inserts it again, with the name of the entry.
INSERT_NAME = b"\x40\x7f\xe1\x1e" + b"n" * 4064 + b"\0"
INSERT_AGAIN = b"\x7e\0"


@attack()
def header_inserts(run):
    """Header blocks whose fields take two bytes each, and copy a name of 4 KB into HPACK's table."""
    server = run.server()
    block = INSERT_NAME + INSERT_AGAIN * ((65_536 - len(INSERT_NAME)) // 2)
    parts = [block[at:at + 16_384] for at in range(0, len(block), 16_384)]

    def do(attacker):
        stream = 2 * attacker.opened + 1
        attacker.opened += 1
        attacker.write(frame(HEADERS, 0, stream, parts[0]) + b"".join(
            frame(CONTINUATION, END_HEADERS if part is parts[-1] else 0, stream, part)
            for part in parts[1:]),
                       seconds=1)
        attacker.read(0.01)

    storm(run, server.connect, do)


CLOSED_STREAMS = 64  # that ended last, which the server tells from others
CALM_S = 3


@attack()
def late_headers(run):
    """Headers on a stream that ended long ago, without end. Their fields take two bytes each, and
    copy a name of 4 KB into HPACK's table."""
    server = run.server()
    body = message(acquisition(("big", "late")))
    flood = frame(HEADERS, END_HEADERS, 1, INSERT_AGAIN * 16) * 400
    attackers = []

    def connect_one():
        attacker = server.connect()
        for _ in range(CLOSED_STREAMS + 2):
            attacker.call("Acquire", body)
        stream, head = attacker.head("Acquire")
        attacker.write(frame(HEADERS, END_HEADERS, stream, head[9:] + INSERT_NAME))
        attacker.send(stream, body, end=True)
        attacker.wait(5)
        if attacker.calls:
            attacker.close()
            raise TimeoutError("calls before the attack were not answered")
        attacker.begun, attacker.flooded_s = time.monotonic(), 0
        attackers.append(attacker)
        return attacker

    def do(attacker):
        attacker.write(flood)
        attacker.read()
        attacker.flooded_s = time.monotonic() - attacker.begun

    storm(run, connect_one, do)
    judged = [a for a in attackers if a.ended or a.flooded_s > CALM_S]
    calm = [a for a in judged if a.flooded_s <= CALM_S and str(a.ended).startswith("GOAWAY 11")]
    others = sorted({a.ended or "stayed open" for a in judged if a not in calm})
    run.check(len(calm) == len(judged) > 0,
              f"{len(calm)} of {len(judged)} connections ended with ENHANCE_YOUR_CALM within "
              f"{CALM_S} s" + (f", others: {', '.join(others)}" if others else ""), "all ended")


@attack()
def window_settings(run):
    """SETTINGS frames with 32 initial windows each, while a thousand calls are open."""
    server = run.server()
    values = frame(SETTINGS, 0, 0,
                   b"".join(struct.pack(">HI", 4, 1 + (i & 1)) for i in range(32)))

    def connect():
        attacker = server.connect()
        attacker.write(b"".join(attacker.head("AcquireStream")[1] for _ in range(1000)))
        return attacker

    def do(attacker):
        attacker.write(values * 31, seconds=1)
        attacker.read(0.01)
        attacker.close()

    storm(run, connect, do)


def send_references(attacker):
    """A hundred calls with the same header block."""
    first = 2 * attacker.opened - 1
    attacker.opened += 100
    attacker.write(b"".join(
        frame(HEADERS, END_HEADERS | END_STREAM, first + 2 * i, attacker.references)
        for i in range(100)),
                   seconds=1)
    attacker.read(0)


@attack()
def header_cpu(run):
    """Calls with the longest header lists: hundreds of references of one byte to short entries."""
    server = run.server()
    metadata = [(f"x-{i}", "v") for i in range(60)] * 6

    def connect():
        attacker = server.connect()
        attacker.write(attacker.head("Acquire", metadata, end=True)[1])
        attacker.references = attacker.head("Acquire", metadata,
                                            end=True)[1][9:]  # all are in the table
        return attacker

    storm(run, connect, send_references)


@attack()
def many_tokens(run):
    """With a clients file: header lists that refer to two tokens in turn, a byte each, and end with
    a malformed header, so that no call begins."""
    clients = clients_file()
    server = run.server(f"--clients={clients.name}")
    tokens = [("authorization", "Bearer a"), ("authorization", "Bearer b")] * 150
    malformed = b"\0\1X\1v"  # a name in upper case

    def connect():
        attacker = server.connect()
        stream, head = attacker.head("Acquire", tokens)
        attacker.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, head[9:] + malformed))
        # Both are in the table.
        attacker.references = attacker.head("Acquire", tokens)[1][9:] + malformed
        return attacker

    storm(run, connect, send_references)


@attack()
def small_frames(run):
    """Large messages in DATA frames of one byte, padded or empty, on many calls."""
    server = run.server()

    def do(attacker):
        stream = attacker.open("AcquireBatch")
        body = struct.pack(">BI", 0, 4000) + bytes(2000)
        if not attacker.ended:
            attacker.write(b"".join(
                frame(DATA, 0, stream, body[i:i + 1]) for i in range(len(body))),
                           seconds=1)
            attacker.reset(stream)
        attacker.read()

    storm(run, server.connect, do)


KEY_UPDATES = 600  # with the record behind them less than 16 KiB, which are read at once


class KeyUpdater:
    """A TLS connection that sends KeyUpdates. It does not decrypt what the server answers."""

    def __init__(self, server):
        with tempfile.NamedTemporaryFile("r") as keys:
            context = ssl.create_default_context(cafile=server.ca)
            context.set_alpn_protocols(["h2"])
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.keylog_filename = keys.name
            self.socket, tls, written = tls_by_hand(server, context)
            self._records = Records(tls.cipher()[0], keys.read())
        self.sent = 0
        self.ended = None
        self._write(written.read() + self._records.data(PREFACE + settings()))
        self._read()

    def update_keys(self):
        updates = [self._records.key_update() for _ in range(KEY_UPDATES)]
        self._write(b"".join(updates) + self._records.data(window_update(0, 1)))
        self._read()

    def _write(self, data):
        self.socket.settimeout(5)
        try:
            self.socket.sendall(data)
            self.sent += len(data)
        except OSError as e:
            self.ended = type(e).__name__

    def _read(self):
        """Reads until it is quiet: the server has read what was sent, and reads the next write by
        itself."""
        self.socket.settimeout(1)
        try:
            while not self.ended:
                if not self.socket.recv(1 << 16):
                    self.ended = "closed"
                self.socket.settimeout(0.01)
        except socket.timeout:
            pass
        except OSError as e:
            self.ended = type(e).__name__


@attack()
def tls_key_updates(run):
    """TLS: 600 KeyUpdates that ask for one each, and then a small record with a frame, in each
    write."""
    server = run.server(tls=True)
    if KeyUpdater(server).ended:
        raise RuntimeError("no TLS 1.3 connection before the attack")
    storm(run, lambda: KeyUpdater(server), KeyUpdater.update_keys)


def json_batch(charges, count):
    acquisition_of = {"charges": [{"limit": limit, "key": key} for limit, key in charges]}
    return json.dumps({"acquisitions": [acquisition_of] * count}, separators=(",", ":")).encode()


def repeat_requests(open_one, requests, until):
    """Sends each request again and again on a connection of its own, and drops the answers.
    Returns the bytes sent."""
    poll = select.poll()
    connections = {}  # by descriptor: (socket, request, what is left of it)
    sent = 0

    def begin(request):
        try:
            one = open_one()
        except OSError:  # refused
            return
        # What the server does not read waits here.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        one.setblocking(False)
        connections[one.fileno()] = one, request, memoryview(request)
        poll.register(one, select.POLLIN | select.POLLOUT)

    for request in requests:
        begin(request)
    while connections and time.monotonic() < until:
        for descriptor, events in poll.poll(100):
            one, request, rest = connections[descriptor]
            try:
                if events & ~select.POLLOUT and not one.recv(1 << 20):
                    raise ConnectionError
                if events & select.POLLOUT:
                    count = one.send(rest)
                    sent += count
                    connections[descriptor] = one, request, rest[count:] or memoryview(request)
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(one)
                del connections[descriptor]
                one.close()
                begin(request)
    close([one for one, _, _ in connections.values()], reset=True)
    return sent


def call_json(server, until, took_s, failed):
    """An honest caller: 20 acquisitions each 100 ms. Appends how long each answer took, or what
    came instead."""
    host, port = server.http.rsplit(":", 1)
    one = http.client.HTTPConnection(host, int(port), timeout=10, source_address=(HONEST, 0))
    body = json_batch([("honest", "json")], 20)
    while time.monotonic() < until:
        start = time.monotonic()
        try:
            one.request("POST", "/v1/acquireBatch", body, {"Content-Type": "application/json"})
            answer = one.getresponse()
            granted = answer.read().count(b'"granted":true')
            if answer.status == 200 and granted == 20:
                took_s.append(time.monotonic() - start)
            else:
                failed.append(f"{answer.status} with {granted} grants")
        except (OSError, http.client.HTTPException) as e:
            failed.append(type(e).__name__)
            one.close()  # the next request connects again
        time.sleep(max(0, start + 0.1 - time.monotonic()))
    one.close()


@attack()
def json_batches(run):
    """HTTP: 200 connections of one address repeat batches of 300 to 4096 acquisitions in JSON. An
    honest caller of another address sends small ones."""
    server = run.server()
    bodies = [json_batch([("big", "json")], 4096), json_batch(SIXTEEN, 1200),
              json_batch(SIXTEEN, 300)]
    requests = [post("/v1/acquireBatch", body) for body in bodies]
    took_s, failed = [], []
    run.begin()
    until = time.monotonic() + 10
    honest = threading.Thread(target=call_json, args=(server, until, took_s, failed), daemon=True)
    honest.start()
    # Beside others whose address honest callers have, too, memory must not be short.
    connections = 24 if run.shared else run.n(200, at_most=run.most_files)
    sent = repeat_requests(lambda: connect(server.http, source="127.0.0.2"),
                           [requests[i % 3] for i in range(connections)], until)
    honest.join()
    run.note(f"{sent / 1e6:.0f} MB sent")
    slowest_s = max(took_s, default=math.inf)
    codes = "".join(f", {failed.count(code)} {code}" for code in sorted(set(failed)))
    # Where the processors are busy with other attacks, a few are shed.
    run.check(len(failed) <= len(took_s) / 10 and slowest_s <= 5,
              f"{len(took_s)} honest JSON batches answered, {len(failed)} not{codes}; slowest "
              f"{slowest_s:.2f} s", "nine of ten answered, within 5 s")
    run.released("after they left")
    run.end()


@attack(redis=True)
def redis_deadlines(run):
    """With Redis: batches of distinct keys wait in the queues to Redis, two of 4096 and hundreds of
    16, while deadlines of unary calls pass, one in each millisecond."""
    server = run.server(redis=True)

    def distinct(name, count, compress=False):
        return message(pb.AcquireBatchRequest(acquisitions=[
            acquisition(("big", f"{name}-{i}")) for i in range(count)]), compress=compress)

    # The store asks Redis for a batch in slices of 256, so that small ones fill the queues.
    bodies = [(distinct(f"large{i}", 4096, compress=True), GZIP) for i in range(2)]
    bodies += [(distinct(f"small{i}", 16), ()) for i in range(run.n(500, at_most=800))]
    unary = [message(acquisition(("big", f"unary{ms}"))) for ms in range(1, 51)]
    streams = [0] * len(bodies)
    run.begin()
    attacker = server.connect()
    until = time.monotonic() + 8
    while time.monotonic() < until and not attacker.ended:
        for i, (body, extra) in enumerate(bodies):
            if streams[i] not in attacker.calls:
                streams[i] = attacker.open("AcquireBatch", extra)
                attacker.send(streams[i], body, end=True, seconds=1)
        for ms, body in enumerate(unary, 1):
            if len(attacker.calls) < 1000:
                attacker.call("Acquire", body, (("grpc-timeout", f"{ms}m"),), seconds=1)
        attacker.read(0.001)
    run.note(f"{attacker.opened} calls")
    run.sent(attacker)
    # Behind so many keys an honest call waits for 100 ms of Redis' time.
    run.end(p99=250)
