"""Attacks on the HTTP port."""
import json
import socket
import struct
import threading
import time

from http2 import connect
from run import acquire_batch, attack, seconds

CHECK = b"GET /v1/check?limit=honest&key=http HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(path, body):
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body))


def answered(server, timeout_s=5, source="127.0.0.1"):
    """Whether an honest request on a connection of its own is answered."""
    try:
        with connect(server.http, timeout_s, source) as one:
            one.sendall(CHECK)
            return one.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def honest_requests(run, server, what, source="127.0.0.1"):
    served = sum(answered(server, source=source) for _ in range(20))
    run.check(served == 20, f"{served} of 20 honest requests beside {what}", "20 of 20")


def close(connections, reset=False):
    """`reset`: the server is told at once that nobody reads the answers."""
    for one in connections:
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()


@attack()
def http_idle(run):
    """HTTP: more keep-alive connections than the port has, idle after one request each."""
    server = run.server()
    run.begin()
    idle = []
    for _ in range(run.n(10_500, at_most=run.most_files)):
        one = connect(server.http)
        one.sendall(CHECK)
        idle.append(one)
    honest_requests(run, server, f"{len(idle)} idle connections")
    run.rss(96)
    close(idle)
    run.released("after they left")
    run.end()


@attack()
def http_streams(run):
    """HTTP: one address takes all connections of the port for watches, which are never idle."""
    server = run.server()
    run.begin()
    watch = json.dumps({"buckets": [{"limit": "honest", "key": "w"}],
                        "minInterval": "3600s"}).encode()
    streams = []
    for _ in range(run.n(10_500, at_most=run.most_files)):
        try:
            one = connect(server.http, source="127.0.0.2")
            one.sendall(post("/v1/watch", watch))
            streams.append(one)
        except OSError:
            pass  # refused
    honest_requests(run, server, f"{len(streams)} streams", source="127.0.0.3")
    run.rss(160)
    close(streams)
    run.released("after they left")
    run.end()


@attack()
def http_readers(run):
    """HTTP: thousands of readers of the page's events."""
    server = run.server()
    run.begin()
    readers = []
    for _ in range(run.n(3_000)):
        readers.append(connect(server.http))
        readers[-1].sendall(b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until = time.monotonic() + 8
    begun, seconds = set(), set()
    while time.monotonic() < until:
        for one in readers:
            one.setblocking(False)
            try:
                data = one.recv(1 << 16)
            except OSError:  # nothing is there, or the reader was reset
                continue
            if b"event: snapshot" in data:
                begun.add(one)
            if b"event: second" in data:
                seconds.add(one)
    run.check(begun == seconds == set(readers),
              f"{len(begun)} of {len(readers)} readers got a snapshot, {len(seconds)} a second",
              "all of both")
    honest_requests(run, server, f"{len(readers)} readers")
    run.rss(96)
    close(readers)
    run.released("after they left")
    run.end()


@attack()
def http_folds(run):
    """HTTP: /v1/check of buckets with 126,976 bookings whose grant times have passed."""
    server = run.server()
    run.begin()
    keys = [f"fold{i}" for i in range(run.n(4, at_most=4))]  # all that a limit may book
    booked = 0
    for key in keys:
        stub = server.stub()  # a connection has a bound of its own
        acquire_batch(run, stub, ("folds", key, 130_000), count=1)
        booked += sum(seconds(answer.wait) > 0
                      for _ in range(31)
                      for answer in acquire_batch(run, stub, ("folds", key), wait_s=60))
    run.note(f"{booked} bookings in {len(keys)} buckets")
    time.sleep(6)  # all of a key have the same grant time
    granted = 0
    for key in keys:
        with connect(server.http) as one:
            one.sendall(b"GET /v1/check?limit=folds&key=%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
                        % key.encode())
            granted += one.recv(4096).startswith(b"HTTP/1.1 200")
    run.check(booked > 100_000 * len(keys) and granted == len(keys),
              f"{granted} of {len(keys)} checks granted", "all")
    honest_requests(run, server, "such checks")
    run.end()


@attack()
def http_half_done_batches(run):
    """HTTP: batches of 12 KB on many connections, each half done: all their acquisitions are
    errors."""
    server = run.server("--memory_limit=128MiB")
    body = post("/v1/acquireBatch", b'{"acquisitions":[%s{}]}' % (b"{}," * 4095))
    run.begin()
    attackers = [connect(server.http) for _ in range(run.n(500))]
    for one in attackers:
        try:
            one.sendall(body)
        except OSError:  # closed, since the server holds as much as it may
            pass
    time.sleep(2)
    honest_requests(run, server, f"{len(attackers)} batches", source="127.0.0.2")
    run.rss(160)
    # A peer that only ends its sending may read its answer, so the server would still decide.
    close(attackers, reset=True)
    run.released("after they left")
    run.end()


@attack()
def http_slow_headers(run):
    """HTTP: connections that send the headers of a request byte by byte."""
    server = run.server()
    run.begin()
    slow = [connect(server.http) for _ in range(run.n(2_000))]
    head = CHECK[:-2] + b"X-Slow: " + b"x" * 1000
    ended = set()
    for at in range(15):
        for one in slow:
            try:
                one.send(head[at:at + 1] if at else head[:20])
            except OSError:
                ended.add(one)
        if at % 7 == 3:
            honest_requests(run, server, f"{len(slow)} slow connections")
        time.sleep(1)
    run.check(len(ended) == len(slow), f"{len(ended)} of {len(slow)} slow connections closed",
              "all, 10 s after their first byte")
    run.rss(64)
    close(slow)
    run.released("after they left")
    run.end()


def flood(one, requests, until):
    """Sends without reading, then reads a little, again and again."""
    try:
        while time.monotonic() < until:
            one.sendall(requests)
            one.settimeout(0.05)
            try:
                while one.recv(1 << 16):
                    pass
            except socket.timeout:
                pass
            one.settimeout(5)
    except OSError:
        pass


@attack()
def http_pipelining(run):
    """HTTP: thousands of requests in each segment, on a few connections."""
    server = run.server()
    run.begin()
    attackers = [connect(server.http) for _ in range(run.n(10))]
    until = time.monotonic() + 5
    threads = [threading.Thread(target=flood, args=(one, CHECK * 1000, until))
               for one in attackers]
    for thread in threads:
        thread.start()
    honest_requests(run, server, f"{len(attackers)} floods")
    for thread in threads:
        thread.join()
    run.rss(32)
    close(attackers)
    run.released("after they left")
    run.end()


@attack()
def http_short_queries(run):
    """HTTP: short requests with a hundred items each, whose answers are ten times as long."""
    server = run.server()
    run.begin()
    query = json.dumps({"buckets": [{"limit": "p1"}] * 135}, separators=(",", ":")).encode()
    batch = json.dumps({"acquisitions": [{}] * 79}, separators=(",", ":")).encode()
    requests = post("/v1/query", query) * 20 + post("/v1/acquireBatch", batch) * 20
    attackers = [connect(server.http) for _ in range(run.n(4))]
    until = time.monotonic() + 5
    threads = [threading.Thread(target=flood, args=(one, requests, until)) for one in attackers]
    for thread in threads:
        thread.start()
    honest_requests(run, server, f"{len(attackers)} floods")
    for thread in threads:
        thread.join()
    close(attackers)
    run.released("after they left")
    run.end()


@attack()
def http_unread(run):
    """HTTP: watches of busy buckets, and lists of limits, whose answers are never read."""
    server = run.server()
    run.begin()
    watch = json.dumps({"buckets": [{"limit": "honest", "key": f"{i}"} for i in range(256)],
                        "minInterval": "0.010s"}).encode()
    unread = []
    for i in range(run.n(100)):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.http.rsplit(":", 1)
        one.connect((host, int(port)))
        if i % 2:
            one.sendall(post("/v1/watch", watch))
        else:
            one.setblocking(False)
            try:
                for _ in range(200):
                    one.send(b"POST /v1/listLimits HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            except BlockingIOError:
                pass
        unread.append(one)
    for i in range(20):
        with connect(server.http) as one:
            one.sendall(CHECK.replace(b"key=http", b"key=%d" % i) * 50)
            time.sleep(0.2)
    honest_requests(run, server, f"{len(unread)} connections that read nothing")
    run.rss(96)
    close(unread)
    run.released("after they left")
    run.end()
