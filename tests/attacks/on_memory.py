"""Attacks on the server's memory: few bytes that make it hold many, for long."""
import struct
import time

import grpc

from http2 import (CONTINUATION, DEFLATE, END_HEADERS, GZIP, HEADERS, PING, Connection, frame,
                   message, window_update)
from run import acquire_batch, acquisition, attack, batch, batch_message, buckets
from server import pb

SIXTEEN = [("big", f"{i:x}") for i in range(16)]


def judge(run, attackers, rss_mb, left="after they left"):
    """Bounds the memory while the attackers are connected, and what is held when they are gone."""
    run.sent(attackers)
    run.rss(rss_mb)
    for attacker in attackers:
        attacker.close()
    run.released(left)
    run.end()


def await_close(run, attackers, at_most_s, is_open):
    """The server is to close all of them."""
    until = time.monotonic() + at_most_s
    while time.monotonic() < until and any([is_open(attacker) for attacker in attackers]):
        time.sleep(0.5)
    check_closed(run, attackers)


def check_closed(run, attackers):
    closed = sum(bool(attacker.ended) for attacker in attackers)
    run.check(closed == len(attackers), f"{closed} of {len(attackers)} closed", "all closed")


@attack()
def stream_memory(run):
    """AcquireStreams on one connection, each idle after one batch of 4096 acquisitions with 16
    charges."""
    server = run.server()
    body = batch_message(*SIXTEEN)
    run.begin()
    attacker = server.connect(ledger=run.ledger)
    for _ in range(run.n(100)):
        attacker.send(attacker.open("AcquireStream", GZIP), body)
        attacker.read_until_quiet(0.1)
    run.sent(attacker)
    run.rss(64)
    run.released("by idle streams", [attacker])
    run.end()


@attack()
def idle_streams(run):
    """Streams on many connections, idle after batches of other shapes: long keys, many errors."""
    server = run.server()
    long_keys = batch_message(("big", "k" * 512), count=2000)
    unknown = message(batch(acquisition(("no-such-limit-" + "n" * 100, "k")), 4096), compress=True)
    run.begin()
    attackers = [server.connect(ledger=run.ledger) for _ in range(run.n(10))]
    for body in (long_keys, unknown):
        for attacker in attackers:
            for _ in range(5):
                attacker.send(attacker.open("AcquireStream", GZIP), body)
            attacker.read(0.05)
    for attacker in attackers:
        attacker.read_until_quiet(0.5)
    run.sent(attackers)
    run.rss(64)
    run.released("by idle streams", attackers)
    run.end()


@attack()
def stream_last_byte(run):
    """AcquireStreams, each idle after a message of 4 MB and the first byte of the next."""
    server = run.server()
    one = batch(acquisition(("api", "k")), 1).SerializeToString()
    # A field that the server skips. Its length takes four bytes.
    size = (4 << 20) - len(one) - 5
    length = bytes(size >> shift & 127 | (128 if shift < 21 else 0) for shift in (0, 7, 14, 21))
    body = message(one + b"\x7a" + length + bytes(size)) + b"\0"
    run.begin()
    attacker = server.connect()
    for _ in range(run.n(100)):
        if not attacker.send(attacker.open("AcquireStream"), body):
            break
    attacker.read_until_quiet(0.5)
    run.sent(attacker)
    run.rss(64)
    run.released("by idle streams", [attacker])
    run.end()


@attack()
def header_bomb(run):
    """Calls whose headers refer four times to one entry of 3.8 KB in HPACK's table; windows of
    0."""
    server = run.server()
    run.begin()
    metadata = [("x-a", "v" * 3800)
               ] * 4  # the first fills HPACK's table, the others take a byte each
    attackers = []
    for _ in range(run.n(20)):
        attacker = server.connect(window=0)
        attackers.append(attacker)
        for _ in range(40):
            heads = [attacker.head("AcquireStream", metadata)[1] for _ in range(100)]
            if not attacker.write(b"".join(heads)):
                break
            attacker.read()
    time.sleep(1)
    judge(run, attackers, rss_mb=64)


@attack()
def open_metadata(run):
    """Streams that stay open, each with 7 KB of metadata of its own that no table holds."""
    server = run.server()
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    for i in range(500):
        for attacker in attackers:
            names = [(f"x-{i}-{n}", f"{i:07}" * 100) for n in range(10)]
            _, head = attacker.head("AcquireStream", names)
            attacker.write(head, seconds=1)
            attacker.read()
    judge(run, attackers, rss_mb=64)


@attack()
def long_paths(run):
    """Calls of unknown methods with paths of 16 KB, which are not gRPC and do not end."""
    server = run.server()
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    for attacker in attackers:
        block = attacker.encoder.encode([(":method", "POST"), (":scheme", "http"),
                                         (":authority", "a"), (":path", "/" + "p" * 16000)],
                                        huffman=False)
        for stream in range(1, 2000, 2):
            if not attacker.write(frame(HEADERS, END_HEADERS, stream, block), seconds=1):
                break
            attacker.read()
    judge(run, attackers, rss_mb=64)


@attack()
def continuation_flood(run):
    """Header blocks without an end on many connections at once, and many that stay half sent."""
    server = run.server()
    run.begin()
    endless = [server.connect() for _ in range(run.n(20))]
    for attacker in endless:
        _, head = attacker.head("Acquire")
        attacker.write(head[:4] + b"\0" + head[5:])
        for _ in range(200):
            if not attacker.write(frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 100), seconds=1):
                break
            attacker.read()
    half = [server.connect() for _ in range(run.n(500))]
    for attacker in half:
        _, head = attacker.head("Acquire")
        # 15 KB of a block that never ends: below the bound of a header list.
        attacker.write(head[:4] + b"\0" + head[5:] +
                       frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\x81\x73" + b"b" * 15000),
                       seconds=1)
        attacker.read()
    for attacker in endless:
        attacker.read(0.1)
    check_closed(run, endless)
    judge(run, endless + half, rss_mb=64)


@attack()
def unsent_answers(run):
    """Connections with windows of 0 and batches whose answers they never take. They answer
    PINGs."""
    server = run.server()
    body = batch_message(("api", "k"))
    run.begin()
    attackers = [server.connect(window=0) for _ in range(run.n(60))]
    for attacker in attackers:
        for _ in range(120):
            if not attacker.call("AcquireBatch", body, GZIP, seconds=1):
                break
    def is_open(attacker):
        attacker.read()
        return not attacker.ended

    await_close(run, attackers, 32, is_open)
    judge(run, attackers, rss_mb=128)


@attack()
def slow_answers_end(run):
    """Batches of 8 KB whose answers of 290 KB are taken but for the last 200 bytes."""
    server = run.server()
    # Acquisitions that name no charge: two bytes for an error of 71.
    body = message(b"\x0a\x00" * 4096)
    window, kept, count = 16384, 200, run.n(240, at_most=1000)
    run.begin()
    attacker = server.connect(window=window)
    for _ in range(count):
        stream = attacker.open("AcquireBatch")
        attacker.send(stream, body, end=True)
        until = time.monotonic() + 5
        while (stream in attacker.calls and stream not in attacker.answer_bytes and
               not attacker.ended and time.monotonic() < until):
            attacker.read(0.1)
        rest = attacker.answer_bytes.get(stream, 0) - window - kept
        if rest <= 0:
            break
        goal = attacker.received + rest
        attacker.write(window_update(stream, rest))
        while attacker.received < goal and attacker.read(1):
            pass
    waiting = 0 if attacker.ended else len(attacker.calls)
    run.check(waiting == count, f"{waiting} of {count} answers wait for their last bytes", "all")
    run.sent(attacker)
    run.rss(32)
    run.released("by answers that wait", [attacker])
    run.end()


@attack()
def unread_socket(run):
    """Connections with open windows that never read their socket, and send batches and PINGs."""
    server = run.server()
    body = batch_message(("api", "k"))
    run.begin()
    attackers = [server.connect(receive_buffer=4096) for _ in range(run.n(60))]
    for attacker in attackers:
        attacker.reads = False
    for _ in range(120):
        for attacker in attackers:
            attacker.write(frame(PING, 0, 0, b"pingpong"), seconds=0.05)
            attacker.call("AcquireBatch", body, GZIP, seconds=0.05)
    await_close(run, attackers, 34, Connection.check_open)
    judge(run, attackers, rss_mb=128)


@attack()
def slow_readers(run):
    """Connections that take a byte of each answer now and then, so that no write stalls for
    long."""
    server = run.server()
    body = batch_message(("api", "k"))
    run.begin()
    attackers = [server.connect(receive_buffer=4096) for _ in range(run.n(60))]
    until = time.monotonic() + 20
    while time.monotonic() < until and any(not a.ended for a in attackers):
        for attacker in attackers:
            if len(attacker.calls) < 60 and attacker._windows[0] > len(body):
                attacker.call("AcquireBatch", body, GZIP, seconds=0.02)
            attacker.read(at_most=200)
        time.sleep(0.1)
    judge(run, attackers, rss_mb=128)


@attack()
def watch_memory(run):
    """Watches of 256 keys of 512 bytes, compressed, one answer a minute."""
    server = run.server()
    watch = pb.WatchRequest(buckets=buckets("daily", 256))
    watch.min_interval.FromSeconds(60)
    body = message(watch, compress=True)
    run.begin()
    attacker = server.connect()
    for _ in range(run.n(2000)):
        if not attacker.call("Watch", body, GZIP):
            break
        attacker.read()
    attacker.read_until_quiet(1)
    judge(run, [attacker], rss_mb=64)


@attack()
def watch_connections(run):
    """Watches of long keys on many connections, whose answers are not taken."""
    server = run.server()
    watch = pb.WatchRequest(buckets=buckets("daily", 256))
    watch.min_interval.FromMilliseconds(10)
    body = message(watch, compress=True)
    run.begin()
    attackers = [server.connect(window=0) for _ in range(run.n(50))]
    for attacker in attackers:
        for _ in range(40):
            if not attacker.call("Watch", body, GZIP, seconds=1):
                break
            attacker.read()
    time.sleep(3)
    judge(run, attackers, rss_mb=64)


@attack()
def key_lengths(run):
    """Fills the table with keys of one length after the other, of which one in 50 stays."""
    server = run.server("--memory_limit=64MiB")
    stub = server.stub()
    run.begin()
    made = 0
    for length in range(512, 352, -8):
        for _ in range(run.n(15)):
            one = [acquisition(("slow" if n % 50 == 0 else "api", f"{made + n}".rjust(length, "k")))
                   for n in range(4096)]
            try:
                stub.AcquireBatch(pb.AcquireBatchRequest(acquisitions=one), timeout=30,
                                  compression=grpc.Compression.Gzip)
            except grpc.RpcError as e:
                run.note(e.code().name)
            made += len(one)
        time.sleep(0.5)
    run.note(f"{made} keys sent")
    run.rss(48)
    run.end()


HELD_ATTACKERS, HELD_CALLS = 10, 1000


def hold_large_calls(run, server):
    """Connections whose calls wait for their grant time, with 15 charges and a receipt each."""
    attackers = [server.connect() for _ in range(run.n(HELD_ATTACKERS))]
    for i in range(HELD_CALLS):
        for attacker in attackers:
            charges = [(f"part{n}", "shared", 1) if n else ("far_child", f"{i}".rjust(512, "k"))
                       for n in range(15)]
            attacker.call("Acquire",
                          message(acquisition(*charges, wait_s=24 * 3600, hold=True, receipt=True),
                                  compress=True),
                          GZIP,
                          seconds=0.2)
            attacker.read()
    run.note(f"{sum(len(a.calls) for a in attackers)} calls open")
    return attackers


@attack()
def held_calls(run):
    """Calls that wait for their grant time, with 15 charges, a long key and a receipt each."""
    server = run.server()
    run.begin()
    attackers = hold_large_calls(run, server)
    # Callers may be held by the hundred thousand, within --memory_limit. So the bound is that of a
    # connection with its calls: 6.4 MB. The buckets of long keys stay: they are booked, or not full.
    mb = 64 / HELD_ATTACKERS * max(HELD_ATTACKERS, len(attackers))
    judge(run, attackers, rss_mb=mb, left="after they left, with their buckets")


@attack()
def held_over_limit(run):
    """The same calls, which take more than --memory_limit leaves for them."""
    server = run.server("--memory_limit=64MiB")
    run.begin()
    attackers = hold_large_calls(run, server)
    judge(run, attackers, rss_mb=64, left="after they left, with their buckets")


@attack()
def half_done_batches(run):
    """Batches of 4 KB on many connections, each half done: all their acquisitions are errors."""
    server = run.server("--memory_limit=128MiB")
    body = message(b"\x0a\x00" * 2047)
    run.begin()
    attackers = [server.connect() for _ in range(run.n(600))]
    for _ in range(2):
        for attacker in attackers:
            attacker.call("AcquireBatch", body, seconds=0.2)
    judge(run, attackers, rss_mb=160)


@attack()
def half_done_stream_batches(run):
    """The same batches on streams, which were admitted before memory was short."""
    server = run.server("--memory_limit=128MiB")
    body = message(b"\x0a\x00" * 2047)
    run.begin()
    attackers = [server.connect() for _ in range(run.n(600))]
    streams = [(a, [a.open("AcquireStream") for _ in range(2)]) for a in attackers]
    for attacker, _ in streams:
        attacker.read()
    for turn in range(2):
        for attacker, opened in streams:
            attacker.send(opened[turn], body, seconds=0.2)
    time.sleep(2)
    judge(run, attackers, rss_mb=160)


@attack()
def receipt_flood(run):
    """As many open receipts as buckets take, on many buckets."""
    server = run.server("--memory_limit=128MiB")
    stub = server.stub()
    run.begin()
    granted = 0
    for i in range(run.n(600)):
        granted += len(acquire_batch(run, stub, ("big", f"r{i}"), count=1024, receipt=True))
    run.note(f"{granted} receipts")
    run.rss(160)
    run.end()


@attack()
def log_bookings(run):
    """Books sliding_logs full, so that each is as long as a log can be, in a few messages."""
    server = run.server("--memory_limit=128MiB")
    run.begin()
    attacker = server.connect(ledger=run.ledger)
    stream = attacker.open("AcquireStream", GZIP)
    until = time.monotonic() + 15
    for i in range(run.n(100)):
        body = batch_message(("log", f"l{i}", 2), wait_s=24 * 3600)
        for _ in range(16):
            attacker.send(stream, body, seconds=1)
            attacker.read(0.01)
        if time.monotonic() > until:
            break
    attacker.read_until_quiet(1, at_most_s=10)
    run.note(f"{i + 1} logs")
    run.sent(attacker)
    run.rss(160)
    run.end()


@attack()
def partial_messages(run):
    """Messages of 4 MB that are announced and sent but for their last byte."""
    server = run.server()
    run.begin()
    attackers = [server.connect() for _ in range(run.n(60))]
    start = struct.pack(">BI", 0, (4 << 20) - 16) + bytes(1 << 20)
    for attacker in attackers:
        for _ in range(20):
            if not attacker.send(attacker.open("AcquireBatch"), start, seconds=0.2):
                break
    judge(run, attackers, rss_mb=128)


REQUEST_TIMEOUT_S = 30  # of the server, for a request that is not complete


def large_batch(server):
    """The code with which an honest caller's batch is answered, of 100 KB that are not
    compressed."""
    request = batch(acquisition(("honest", "unfinished")))
    try:
        results = server.stub().AcquireBatch(request, timeout=10).results
    except grpc.RpcError as e:
        return e.code().name
    return "OK" if all(r.response.granted for r in results) else "not granted"


@attack()
def unfinished_stream_messages(run):
    """AcquireStreams that announce messages of 4 MB and send all but the last byte, together as
    many bytes as the port takes. Their connections then only answer PINGs. After the time-out of a
    request an honest caller sends a batch of 100 KB."""
    server = run.server()
    announced = (4 << 20) - 1024
    start = struct.pack(">BI", 0, announced) + bytes(announced - 1)
    run.begin()
    # Beside others that hold much, and that have the address of honest callers, a quarter.
    attackers = [server.connect() for _ in range(2 if run.shared else run.n(8))]
    sent = 0
    for attacker in attackers:
        for _ in range(2):
            sent += attacker.send(attacker.open("AcquireStream"), start, seconds=5)
    run.sent(attackers)
    run.note(f"{sent} unfinished messages; a batch beside them: {large_batch(server)}")
    until = time.monotonic() + REQUEST_TIMEOUT_S + 2
    while time.monotonic() < until:
        for attacker in attackers:
            attacker.read()
        time.sleep(0.2)
    code = large_batch(server)
    run.check(code == "OK", f"a batch {REQUEST_TIMEOUT_S + 2} s later: {code}", "it is served")
    run.rss(128)
    for attacker in attackers:
        attacker.close()
    run.released("after they left")
    run.end()


@attack()
def deflate_bomb(run):
    """Messages of a few KB that expand to the largest size, in each encoding, and then are
    garbage."""
    server = run.server()
    zeros = bytes(64 << 20)
    bombs = [(message(zeros, compress=True), GZIP), (message(zeros, deflate=True), DEFLATE),
             (message(zeros[:(4 << 20) - 1], compress=True), GZIP),
             (message(zeros[:(4 << 20) - 1], deflate=True), DEFLATE)]
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    for _ in range(10):
        for attacker in attackers:
            for bomb, encoding in bombs:
                attacker.call("AcquireBatch", bomb, encoding, seconds=0.5)
            attacker.read()
    for attacker in attackers:
        attacker.wait(5)
    judge(run, attackers, rss_mb=64)


@attack()
def many_connections(run):
    """A thousand connections, each with a little of everything: an open stream, a half message."""
    server = run.server()
    body = batch_message(*SIXTEEN[:4], count=512)
    run.begin()
    attackers = []
    for _ in range(run.n(1000)):
        attacker = server.connect()
        attackers.append(attacker)
        stream = attacker.open("AcquireStream", GZIP)
        attacker.send(stream, body, seconds=0.2)
        attacker.send(stream, body[:len(body) // 2], seconds=0.2)
        attacker.read()
    for attacker in attackers:
        attacker.read()
    judge(run, attackers, rss_mb=96)


@attack()
def ping_full_window(run):
    """PINGs by the thousand on connections that do not read, so that the answers cannot leave."""
    server = run.server()
    run.begin()
    attackers = [server.connect(receive_buffer=4096, window=0) for _ in range(run.n(20))]
    pings = frame(PING, 0, 0, b"pingpong") * 1000
    for attacker in attackers:
        attacker.reads = False
    for _ in range(100):
        for attacker in attackers:
            attacker.write(pings, seconds=0.02)
    await_close(run, attackers, 34, Connection.check_open)
    judge(run, attackers, rss_mb=32)
