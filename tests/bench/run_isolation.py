#!/usr/bin/env python3
"""What a flood by one client costs another: the honest client's latency alone and under each flood.

    tests/bench/run_isolation.py [--build build] [--rounds 5] [--seconds 4] [--unbounded]
        [--flood NAME ...]

Starts sluiced with two clients (--clients). The honest one acquires one permit, waits 1 ms, and so
on, over one connection. The hostile one has the bounds below and floods from processes that yield
to the honest one (SCHED_IDLE). The server has core 0, and all callers the other cores. Each round measures alone, then
each flood, so that other load on the machine affects all rows. --unbounded leaves the hostile
client's bounds out, which shows what they are worth.

Wanted: a 99th percentile under each flood of at most twice the one alone (the median of the rounds'
ratios), no failed call, and no denial: the honest client's buckets are not taken. Exits with 1
otherwise.
"""
import argparse
import hashlib
import multiprocessing
import os
import random
import re
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

PAUSE_S = 0.001
MOST_RATIO = 2
BOUNDS = """\
    max_calls_per_second: 2000
    max_held_calls: 100
    max_streams: 4
    max_new_keys_per_minute: 1000
"""
LIMITS = """\
limits:
  - { name: honest, rate: 1/d, burst: 20000 }
  - { name: hostile, rate: 1/d, burst: 20000 }
  - { name: slow, rate: 1/m, burst: 1, max_wait: 24h }
"""
# So few that invented keys would take all that the limits share.
FLAGS = ["--threads=1", "--max_buckets=100000", "--max_connections=1000", "--listen=127.0.0.1:0",
         "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"]
MAX_BATCH = 4096

# ---- HTTP/2 and protobuf by hand: an attacker is cheaper than a library, and so is its load on the
# machine. Headers are literals without indexing.

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, value):
    """A length-delimited field, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def acquisition(limit, key, *options):
    """AcquireRequest: a charge of one permit."""
    return field(1, field(1, limit.encode()) + field(2, key.encode())) + b"".join(options)


def batch(requests):
    return b"".join(field(1, request) for request in requests)


def message(payload):
    return b"\0" + struct.pack(">I", len(payload)) + payload


def headers(method, token):
    def literal(name, value):
        assert len(name) < 127 and len(value) < 127
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
    return b"".join(literal(name, value) for name, value in [
        (b":method", b"POST"), (b":scheme", b"http"),
        (b":path", b"/sluice.v1.RateLimiter/" + method.encode()), (b":authority", b"localhost"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        (b"authorization", b"Bearer " + token.encode())])


class Connection:
    """One connection. `window` is what the server may send without being read."""

    def __init__(self, address, window=(1 << 31) - 1):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = b""
        self.next_stream = 1
        self.bodies, self.ended = {}, set()
        settings = struct.pack(">HI", 4, window)
        hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings)
        if window > 65535:
            hello += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window - 65535))
        self.socket.sendall(hello)

    def request(self, method, token, payload=None, end=True):
        """The frames of a call, and its stream."""
        stream = self.next_stream
        self.next_stream += 2
        out = frame(HEADERS, END_HEADERS, stream, headers(method, token))
        if payload is not None:
            out += self.data(stream, payload, end)
        return stream, out

    @staticmethod
    def data(stream, payload, end):
        body = message(payload)
        pieces = [body[i:i + 16384] for i in range(0, len(body), 16384)]
        return b"".join(frame(DATA, END_STREAM if end and i == len(pieces) - 1 else 0, stream, piece)
                        for i, piece in enumerate(pieces))

    def read(self):
        """Takes what has come; waits for something."""
        piece = self.socket.recv(1 << 18)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self.input += piece
        at = 0
        while len(self.input) - at >= 9:
            size = int.from_bytes(self.input[at:at + 3], "big")
            kind, flags = self.input[at + 3], self.input[at + 4]
            if len(self.input) - at < 9 + size:
                break
            stream = int.from_bytes(self.input[at + 5:at + 9], "big")
            payload = self.input[at + 9:at + 9 + size]
            at += 9 + size
            if kind == SETTINGS and not flags & ACK:
                self.socket.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.socket.sendall(frame(PING, ACK, 0, payload))
            elif kind == GOAWAY:
                raise ConnectionError("GOAWAY")
            elif kind == DATA:
                self.bodies[stream] = self.bodies.get(stream, b"") + payload
            if kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM:
                self.ended.add(stream)
        self.input = self.input[at:]

    def finish(self, stream):
        """Waits for the end of a call. Returns its response; None: it failed."""
        while stream not in self.ended:
            self.read()
        self.ended.discard(stream)
        body = self.bodies.pop(stream, None)
        return None if body is None else body[5:]

    def call(self, method, token, payload):
        stream, out = self.request(method, token, payload)
        self.socket.sendall(out)
        return self.finish(stream)


# ---- The honest client

def honest(address, seconds, results):
    """Acquires with pauses of 1 ms. Calls that were due while one was late count too."""
    connection = Connection(address)
    payload = acquisition("honest", f"key-{random.random()}")
    times, failed, denied = [], 0, 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        response = connection.call("Acquire", "honest-token", payload)
        late = time.perf_counter() - start
        if response is None:
            failed += 1
        elif response[:2] != b"\x08\x01":  # field 1: granted
            denied += 1
        while late > 0:
            times.append(late)
            late -= PAUSE_S
        time.sleep(PAUSE_S)
    times.sort()
    results.send({"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100],
                  "failed": failed, "denied": denied})


# ---- The hostile one. Each function runs in a process until that is killed; each counts what it did.

TOKEN = "hostile-token"


def calls(address, done):
    connection = Connection(address)
    payload = acquisition("hostile", "k")
    while True:
        asked = [connection.request("Acquire", TOKEN, payload) for _ in range(100)]
        connection.socket.sendall(b"".join(out for _, out in asked))
        for stream, _ in asked:
            connection.finish(stream)
        done.value += 100


def connections(address, done):
    host, port = address.rsplit(":", 1)
    while True:
        opened = []
        for _ in range(200):
            try:
                opened.append(socket.create_connection((host, int(port)), timeout=5))
                # Closed with a reset, so that the machine does not run out of ports.
                opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                opened[-1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
            except OSError:
                break
        done.value += len(opened)
        for one in opened:
            one.close()


def giant_batches(address, done):
    connection = Connection(address)
    payload = batch([acquisition("hostile", "k")] * MAX_BATCH)
    while True:
        connection.call("AcquireBatch", TOKEN, payload)
        done.value += 1


def invented_keys(address, done):
    connection = Connection(address)
    while True:
        connection.call("AcquireBatch", TOKEN,
                        batch(acquisition("hostile", f"{random.random()}") for _ in range(200)))
        done.value += 200


def held_calls(address, done):
    """1,000 calls that ask to be held, reset, and again."""
    connection = Connection(address)
    payload = acquisition("slow", "k", field(2, field(1, 80000)), field(3, 1))
    while True:
        asked = [connection.request("Acquire", TOKEN, payload) for _ in range(1000)]
        connection.socket.sendall(b"".join(out for _, out in asked))
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            if select.select([connection.socket], [], [], 0.05)[0]:
                connection.read()
        connection.socket.sendall(b"".join(
            frame(RST_STREAM, 0, stream, struct.pack(">I", 8)) for stream, _ in asked
            if stream not in connection.ended))
        connection.ended.clear()
        connection.bodies.clear()
        done.value += 1000


def slow_reads(address, done):
    """Calls whose answers are not read: the connection's window is small, and it is not restored."""
    payload = batch([acquisition("hostile", "k", field(4, 1))] * MAX_BATCH)
    while True:
        opened = []
        for _ in range(20):
            connection = Connection(address, window=1000)
            connection.socket.settimeout(1)
            for _ in range(4):
                _, out = connection.request("AcquireBatch", TOKEN, payload)
                try:
                    connection.socket.sendall(out)
                except OSError:
                    break
                done.value += 1
            opened.append(connection)
        time.sleep(1)
        for one in opened:
            one.socket.close()


FLOODS = {"calls": (calls, 4), "connections": (connections, 2), "giant_batches": (giant_batches, 3),
          "invented_keys": (invented_keys, 3), "held_calls": (held_calls, 2),
          "slow_reads": (slow_reads, 2)}


# ---- The measurement

def run_flood(flood, address, done):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        try:
            flood(address, done)
        except OSError:
            time.sleep(0.01)  # the server closed the connection: begin again


def measure(address, seconds, name=None):
    done = multiprocessing.Value("q", 0, lock=False)
    attackers = []
    if name is not None:
        flood, count = FLOODS[name]
        for _ in range(count):
            attackers.append(multiprocessing.Process(target=run_flood, args=(flood, address, done),
                                                     daemon=True))
            attackers[-1].start()
        time.sleep(0.5)
    here, there = multiprocessing.Pipe()
    caller = multiprocessing.Process(target=honest, args=(address, seconds, there), daemon=True)
    caller.start()
    there.close()
    try:
        result = here.recv()
    except EOFError:
        sys.exit(f"the honest caller failed under {name}")
    caller.join()
    for one in attackers:
        one.kill()
    for one in attackers:
        one.join()
    result["done"] = done.value
    return result


def start_server(build, folder, bounds):
    def client(name, more=""):
        digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
        return (f"  - name: {name}\n    token_sha256: {digest}\n    limits: \"*\"\n"
                f"    calls: [acquire]\n{more}")
    for name, text in [("limits.yaml", LIMITS),
                       ("clients.yaml", "clients:\n" + client("honest") +
                        client("hostile", bounds))]:
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    with open(os.path.join(folder, "log"), "w") as log:
        server = subprocess.Popen(
            [os.path.join(build, "bin", "sluiced"), f"--limits={folder}/limits.yaml",
             f"--clients={folder}/clients.yaml", *FLAGS],
            stdout=subprocess.PIPE, stderr=log, text=True)
    ready = server.stdout.readline()
    if not ready.startswith("ready"):
        with open(os.path.join(folder, "log")) as log:
            sys.exit(f"sluiced did not start: {log.read()}")
    return server, re.search(r"data=(\S+)", ready)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--unbounded", action="store_true")
    parser.add_argument("--flood", nargs="+", choices=sorted(FLOODS), default=list(FLOODS))
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="sluice-isolation-") as folder:
        server, address = start_server(options.build, folder, "" if options.unbounded else BOUNDS)
        try:
            cores = sorted(os.sched_getaffinity(0))
            if len(cores) > 1:
                for task in os.listdir(f"/proc/{server.pid}/task"):
                    os.sched_setaffinity(int(task), {cores[0]})
                os.sched_setaffinity(0, set(cores[1:]))
            rows = {name: [] for name in ["alone", *options.flood]}
            for _ in range(options.rounds):
                for name in rows:
                    rows[name].append(measure(address, options.seconds,
                                              None if name == "alone" else name))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()

    bad = False
    print(f"{'flood':16}{'p50 us':>9}{'p99 us':>9}{'p99 / alone':>13}{'failed':>8}{'denied':>8}"
          f"{'flood: sent':>13}")
    for name, results in rows.items():
        ratio = statistics.median(one["p99"] / alone["p99"]
                                  for one, alone in zip(results, rows["alone"]))
        failed = sum(one["failed"] for one in results)
        denied = sum(one["denied"] for one in results)
        bad |= failed + denied > 0 or ratio > MOST_RATIO
        print(f"{name:16}{statistics.median(one['p50'] for one in results) * 1e6:9.0f}"
              f"{statistics.median(one['p99'] for one in results) * 1e6:9.0f}{ratio:13.2f}"
              f"{failed:8}{denied:8}{sum(one['done'] for one in results):13}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
