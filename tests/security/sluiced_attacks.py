#!/usr/bin/env python3
"""Attacks on the real sluiced over sockets, while it serves an honest client.

    tests/security/sluiced_attacks.py --sluiced build/bin/sluiced [NAME ...]

Each attack has its own server, and goes to the data port or, as admin_NAME, to the admin port.
Meanwhile an honest client calls Acquire on the data port; none of its calls may fail. Afterwards
the server's CPU time must be in proportion to the bytes that it was sent, its memory may have grown
only a little, and it must accept new connections. The bounds are generous: they separate a flood
that is handled from one that is not.
"""

import argparse
import os
import re
import resource
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")
LIMITS = ("limits: [{name: api, rate: 1000000/s, burst: 1000000},"
          " {name: line, rate: 1/60s, burst: 1, max_wait: 24h}]\n")
MIB = 1 << 20
PATIENCE_S = 20
ATTACK_S = 2  # an attack that ends earlier is repeated

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 7, 8, 9)
END_STREAM, END_HEADERS = 1, 4
CALM = 11  # ENHANCE_YOUR_CALM


def frame(kind, flags, stream, payload=b""):
    return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") +
            payload)


def literal(name, value):
    """A header field that is not indexed; both below 127 bytes."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
# 0x83: ":method: POST", 0x86: ":scheme: http".
REQUEST_HEADERS = (b"\x83\x86" + literal(b":path", b"/sluice.v1.RateLimiter/Acquire") +
                   literal(b":authority", b"a") + literal(b"te", b"trailers") +
                   literal(b"content-type", b"application/grpc"))


def field(number, payload):
    """A length-delimited protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def acquire(key):
    message = field(1, field(1, b"api") + field(2, key))
    return b"\0" + len(message).to_bytes(4, "big") + message


def call(stream, key=b"k"):
    return (frame(HEADERS, END_HEADERS, stream, REQUEST_HEADERS) +
            frame(DATA, END_STREAM, stream, acquire(key)))


def frames(data):
    """The complete frames in `data`, and what is left."""
    found = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        if len(data) < 9 + size:
            break
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:9 + size]))
        data = data[9 + size:]
    return found, data


def goaway_codes(data):
    return [int.from_bytes(payload[4:8], "big") for kind, _, _, payload in frames(data)[0]
            if kind == GOAWAY]


class Sluiced:
    def __init__(self, path, folder, flags=(), descriptors=None):
        limits = os.path.join(folder, "limits.yaml")
        with open(limits, "w") as file:
            file.write(LIMITS)
        self.process = subprocess.Popen(
            [path, f"--limits={limits}", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0",
             *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=descriptors and (lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (descriptors, descriptors))))
        line = self.process.stdout.readline().decode()
        found = re.match(r"ready data=(\S+):(\d+) admin=(\S+):(\d+)", line)
        if not found:
            raise SystemExit(f"sluiced printed {line!r} instead of its ports")
        self.data_address = (found.group(1), int(found.group(2)))
        self.admin_address = (found.group(3), int(found.group(4)))
        self.address = self.data_address  # the attacked port

    def connect(self, receive_bytes=0, address=None):
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.settimeout(PATIENCE_S)
        raw.connect(address or self.address)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return raw

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Honest:
    """Makes one call after another on one connection."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.sendall(GREETING + frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        self.stream = 1
        self.data = b""
        self.refused = 0

    def ask(self):
        """Raises unless the call is answered in time and in full. Tries again, a few times, if the
        call was refused: on a busy machine the server may run so late that it sheds."""
        for _ in range(5):
            if self.ask_once():
                return
            self.refused += 1
            time.sleep(0.05)
        raise RuntimeError("an honest call was refused five times")

    def ask_once(self):
        """Returns False if the answer is only an error."""
        stream = self.stream
        self.stream += 2
        self.connection.sendall(call(stream, b"honest"))
        message = b""
        while True:
            got, self.data = frames(self.data)
            for kind, flags, of, payload in got:
                if kind == GOAWAY:
                    raise RuntimeError(f"the honest client received GOAWAY: {payload!r}")
                if kind == SETTINGS and not flags & 1:
                    self.connection.sendall(frame(SETTINGS, 1, 0))
                if kind == PING and not flags & 1:
                    self.connection.sendall(frame(PING, 1, 0, payload))
                if of != stream:
                    continue
                if kind == RST_STREAM:
                    raise RuntimeError("an honest call was reset")
                if kind == DATA:
                    message += payload
                if kind == HEADERS and flags & END_STREAM:
                    if not message:
                        return False
                    # Its first field is granted = true.
                    if message[5:7] != b"\x08\x01":
                        raise RuntimeError(f"an honest call was answered {message!r}")
                    return True
            more = self.connection.recv(65536)
            if not more:
                raise RuntimeError("the honest connection was closed")
            self.data += more


class HonestThread(threading.Thread):
    def __init__(self, connection):
        super().__init__(daemon=True)
        self.client = Honest(connection)
        self.answered = 0
        self.slowest_s = 0.0
        self.error = None
        self.done = threading.Event()
        self.client.ask()

    def run(self):
        try:
            while not self.done.is_set():
                began = time.monotonic()
                self.client.ask()
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.answered += 1
                time.sleep(0.002)
        except Exception as error:  # any failure of an honest call is the finding
            self.error = error


class Attacker:
    """A connection that counts the bytes it sends and keeps the bytes it receives."""

    def __init__(self, connection):
        self.connection = connection
        self.sent = 0
        self.received = b""
        self.ended = False

    def receive(self, wait_s=0.0):
        """Reads the bytes that have arrived."""
        while not self.ended and select.select([self.connection], [], [], wait_s)[0]:
            try:
                got = self.connection.recv(65536)
            except (ConnectionError, ssl.SSLError):
                got = b""
            self.ended = not got
            self.received += got
            wait_s = 0.0

    def send(self, data, read=True, stall_s=PATIENCE_S):
        """Returns False if the connection ended, or accepted no byte for `stall_s`."""
        view = memoryview(data)
        while view and not self.ended:
            if read:
                self.receive()
            if not select.select([], [self.connection], [], stall_s)[1]:
                return False
            try:
                self.connection.setblocking(False)
                taken = self.connection.send(view)
            except BlockingIOError:
                continue
            except ConnectionError:
                self.ended = True
                return False
            finally:
                self.connection.setblocking(True)
            self.sent += taken
            view = view[taken:]
        return not self.ended

    def flood(self, pieces, most_bytes):
        """Sends until the server ends the connection, at most `most_bytes`."""
        for piece in pieces:
            if self.sent >= most_bytes or not self.send(piece):
                break
        until = time.monotonic() + PATIENCE_S
        while not self.ended and time.monotonic() < until:
            self.receive(0.2)


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def ended_for_flood(attacker):
    check(attacker.ended, "the flood's connection was not ended")
    # The TCP reset may overtake the GOAWAY. If one came, it has the reason.
    codes = goaway_codes(attacker.received)
    check(all(code == CALM for code in codes), f"GOAWAY with {codes} instead of {CALM}")


def repeat(piece, times=200):
    while True:
        yield piece * times


def flood(piece, most_bytes=64 * MIB, before=b""):
    def attack(server):
        attacker = Attacker(server.connect())
        attacker.send(GREETING + before)
        attacker.flood(repeat(piece), most_bytes)
        ended_for_flood(attacker)
        return attacker.sent
    return attack


def rapid_reset(server):
    attacker = Attacker(server.connect())
    attacker.send(GREETING)

    def pieces():
        for first in range(1, 4_000_000, 200):
            yield b"".join(call(stream, b"attack") +
                           frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big"))
                           for stream in range(first, first + 200, 2))
    attacker.flood(pieces(), 64 * MIB)
    ended_for_flood(attacker)
    return attacker.sent


def answers(attacker, streams):
    """Waits until each of these calls was answered, or reset, on a connection that goes on."""
    until = time.monotonic() + PATIENCE_S
    left = set(streams)
    while left and not attacker.ended and time.monotonic() < until:
        attacker.receive(0.2)
        left -= {stream for kind, flags, stream, _ in frames(attacker.received)[0]
                 if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM)}
    check(not attacker.ended, "the connection was ended")
    check(not left, f"calls {sorted(left)[:5]} were not answered")


def held(stream, key):
    """A call that waits for its turn: of each key's, all but the first."""
    acquisition = field(1, field(1, b"line") + field(2, key)) + field(2, b"\x08\x80\xa3\x05")
    message = acquisition + b"\x18\x01"  # max_wait 86400 s, hold
    return (frame(HEADERS, END_HEADERS, stream, REQUEST_HEADERS) +
            frame(DATA, END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message))


def held_calls_cancelled(server):
    """Behind one proxy's connection a thousand waiting callers cancel, again and again, while
    an attacker opens and resets at once: the attacker's connection is ended, the proxy's is not."""
    proxy = Attacker(server.connect())
    proxy.send(GREETING + frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
    stream = 1
    sent = 0
    for _ in range(3):
        first = stream
        proxy.send(b"".join(held(first + 2 * i, b"k%d" % (i % 20)) for i in range(1000)))
        stream += 2000
        # Answered in order of arrival: when this one is, all those before it wait.
        proxy.send(call(stream, b"after"))
        answers(proxy, {stream})
        stream += 2
        waited_from = time.monotonic()
        sent += rapid_reset(server)
        # They waited longer than an attacker that opens and resets streams at once.
        time.sleep(max(0, waited_from + 0.2 - time.monotonic()))
        check(proxy.send(b"".join(frame(RST_STREAM, 0, first + 2 * i, (8).to_bytes(4, "big"))
                                  for i in range(1000))), "callers that cancelled were punished")
        proxy.send(call(stream, b"after"))
        answers(proxy, {stream})
        stream += 2
        proxy.received = b""
    return sent + proxy.sent


def cve_2023_1428(server):
    """Headers with values that they cannot have, then more than the list may hold."""
    attacker = Attacker(server.connect())
    attacker.send(GREETING)
    large = b"".join(literal(b"x-%d" % i, b"y" * 120) for i in range(150))
    tail = literal(b":path", b"/sluice.v1.RateLimiter/Acquire") + literal(b":authority", b"a")
    rest = literal(b"content-type", b"application/grpc")
    blocks = [
        b"\x83\x86" + tail + literal(b"te", b"x") + rest,
        b"\x83" + literal(b":scheme", b"x") + tail + literal(b"te", b"trailers") + rest,
        b"\x83\x86" + tail + literal(b"te", b"trailers") + rest +
        literal(b"grpclb_client_stats", b"x"),
    ]
    streams = set()
    for first in range(1, 600, 6):
        for at, block in enumerate(blocks):
            block += large
            stream = first + 2 * at
            streams.add(stream)
            attacker.send(frame(HEADERS, END_STREAM, stream, block[:16000]) +
                          frame(CONTINUATION, END_HEADERS, stream, block[16000:]))
    answers(attacker, streams)
    attacker.send(call(601, b"after"))
    answers(attacker, {601})
    return attacker.sent


def cve_2023_32732(server):
    """A "-bin" value that is no base64 is its call's affair, not the connection's."""
    attacker = Attacker(server.connect())
    attacker.send(GREETING)
    streams = set(range(1, 400, 2))
    for stream in streams:
        attacker.send(frame(HEADERS, END_HEADERS, stream,
                            REQUEST_HEADERS + literal(b"x-bin", b"!!no base64!!")) +
                      call(stream, b"attack")[9 + len(REQUEST_HEADERS):])
    answers(attacker, streams)
    return attacker.sent


def cve_2023_33953(server):
    """Work and memory without bounds in reading HPACK."""
    sent = 0
    endless = (
        # A string of 4 GiB is announced, and sent.
        (b"\0\x7f\x80\xff\xff\xff\x0f", b"v" * 16000),
        # A length that begins with any number of zeros.
        (b"\0\x7f", b"\x80" * 16000),
        # One small header after the other, none of which is too large.
        (b"", literal(b"a", b"1") * 2000),
    )
    for begin, more in endless:
        for _ in range(10):
            attacker = Attacker(server.connect())
            attacker.send(GREETING + frame(HEADERS, 0, 1, REQUEST_HEADERS + begin))
            attacker.flood(repeat(frame(CONTINUATION, 0, 1, more), 4), 16 * MIB)
            check(attacker.ended and attacker.sent < 16 * MIB, "the connection was kept")
            sent += attacker.sent
    return sent


def cve_2023_4785(server):
    """More connections than the server has descriptors for."""
    crowd = []
    for _ in range(400):
        raw = socket.socket()
        raw.setblocking(False)
        raw.connect_ex(server.address)
        crowd.append(raw)
    time.sleep(1)
    for raw in crowd:
        raw.close()
    return 0


def hpack_bomb(server):
    # 4 KB into the dynamic table (a name of 1 byte, a value of 4000), then named 8000 times.
    value = b"\x7f" + b"\xa1\x1e" + b"v" * 4000  # 127 + 0x21 + 0x1e * 128 = 4000
    sent = 0
    for _ in range(20):
        attacker = Attacker(server.connect())
        attacker.send(GREETING)

        def pieces():
            yield frame(HEADERS, END_HEADERS | END_STREAM, 1,
                        REQUEST_HEADERS + b"\x40\x01x" + value)
            for stream in range(3, 20001, 2):
                yield frame(HEADERS, END_HEADERS | END_STREAM, stream,
                            REQUEST_HEADERS + b"\xbe" * 8000)
        attacker.flood(pieces(), 16 * MIB)
        ended_for_flood(attacker)
        sent += attacker.sent
    return sent


def stalled_readers(server):
    """Calls whose answers are never read: the server stops reading, and buffers little."""
    attackers = [Attacker(server.connect(receive_bytes=4096)) for _ in range(8)]
    for attacker in attackers:
        attacker.send(GREETING + frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")),
                      read=False)
        for first in range(1, 2_000_000, 400):
            calls = b"".join(call(stream, b"attack") for stream in range(first, first + 400, 2))
            if not attacker.send(calls, read=False, stall_s=0.3):
                break
        else:
            raise AssertionError("a peer that reads nothing was served without end")
    check(server.resident_bytes() > 0, "the server died")
    return sum(attacker.sent for attacker in attackers)


def announced_4_gib(server):
    sent = 0
    for _ in range(10):
        attacker = Attacker(server.connect())
        attacker.send(GREETING)
        for stream in range(1, 400, 2):
            attacker.send(frame(HEADERS, END_HEADERS, stream, REQUEST_HEADERS) +
                          frame(DATA, 0, stream, b"\0\xff\xff\xff\xff" + b"x" * 100))
        until = time.monotonic() + PATIENCE_S
        refused = set()
        while len(refused) < 200 and not attacker.ended and time.monotonic() < until:
            attacker.receive(0.2)
            refused = {stream for kind, flags, stream, _ in frames(attacker.received)[0]
                       if kind == HEADERS and flags & END_STREAM}
        check(len(refused) == 200 or attacker.ended, f"{len(refused)} of 200 calls were refused")
        sent += attacker.sent
    return sent


def slow_peers(server, stages):
    """Each stage is sent byte by byte, or begun and abandoned; all connections at once."""
    peers = []
    for name, (begin, drip, within_s, ended) in stages.items():
        for _ in range(30):
            attacker = Attacker(server.connect())
            attacker.send(begin)
            peers.append((name, attacker, drip, within_s, ended))
    began = time.monotonic()
    last_s = max(within_s for _, _, _, within_s, _ in peers)
    step = 0
    results = {}
    while len(results) < len(peers) and time.monotonic() - began < last_s + PATIENCE_S:
        for index, (name, attacker, drip, within_s, ended) in enumerate(peers):
            if index in results:
                continue
            attacker.receive()
            answered = any(kind == HEADERS and flags & END_STREAM
                           for kind, flags, _, _ in frames(attacker.received)[0])
            if attacker.ended or (answered and not ended):
                results[index] = time.monotonic() - began
            elif step < len(drip):
                attacker.send(drip[step:step + 1])
        step += 1
        time.sleep(0.5)
    for index, (name, _, _, within_s, _) in enumerate(peers):
        check(index in results, f"a connection with a slow {name} was kept")
        check(results[index] <= within_s + PATIENCE_S,
              f"slow {name}: ended after {results[index]:.0f} s only")
    return sum(attacker.sent for _, attacker, _, _, _ in peers)


def slowloris(server):
    head = frame(HEADERS, END_HEADERS, 1, REQUEST_HEADERS)
    return slow_peers(server, {
        # The bytes sent at once, the bytes sent slowly, the time until the end, and whether the
        # connection is closed.
        "silence": (b"", b"", 10, True),
        "preface": (b"", GREETING, 10, True),
        "headers": (GREETING, head, 20, True),
        "header block": (GREETING + frame(HEADERS, 0, 1, REQUEST_HEADERS), b"", 20, True),
        "body": (GREETING + head, frame(DATA, 0, 1, b"\0\0\0\0\x7f")[:9] + b"\0", 30, True),
        "request": (GREETING + head + frame(DATA, 0, 1, b"\0\0\0\0\x7fpart"), b"", 30, False),
    })


def slow_tls(server):
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500
    return slow_peers(server, {
        "silence": (b"", b"", 10, True),
        "TLS handshake": (b"", hello, 10, True),
        "TLS record": (hello[:5], b"", 10, True),
    })


# Each: the attack, and whether it is on a TLS port.
ATTACKS = {
    "rapid_reset": (rapid_reset, False),
    "continuation_flood": (flood(frame(CONTINUATION, 0, 1),
                                 before=frame(HEADERS, 0, 1, REQUEST_HEADERS)), False),
    "continuation_of_headers_flood": (flood(frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 100)),
                                            before=frame(HEADERS, 0, 1, REQUEST_HEADERS)), False),
    "settings_flood": (flood(frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x64")), False),
    "priority_flood": (flood(frame(PRIORITY, 0, 1, b"\0\0\0\x03\x10")), False),
    "unknown_frame_flood": (flood(frame(0x77, 0, 0, b"what")), False),
    "window_update_flood": (flood(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")), False),
    "ping_flood": (flood(frame(PING, 0, 0, b"pingpong")), False),
    "empty_data_flood": (flood(frame(DATA, 0, 1),
                               before=frame(HEADERS, END_HEADERS, 1, REQUEST_HEADERS)), False),
    "held_calls_cancelled": (held_calls_cancelled, False),
    "cve_2023_1428": (cve_2023_1428, False),
    "cve_2023_32732": (cve_2023_32732, False),
    "cve_2023_33953": (cve_2023_33953, False),
    "cve_2023_4785": (cve_2023_4785, False),
    "hpack_bomb": (hpack_bomb, False),
    "stalled_readers": (stalled_readers, False),
    "announced_4_gib": (announced_4_gib, False),
    "slowloris": (slowloris, False),
    "slow_tls": (slow_tls, True),
}
ON_ADMIN_PORT = ("rapid_reset", "continuation_flood", "settings_flood", "ping_flood",
                 "cve_2023_32732", "hpack_bomb", "announced_4_gib")
ATTACKS |= {"admin_" + name: ATTACKS[name] for name in ON_ADMIN_PORT}


def certificate(folder):
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost", "-days",
                    "2", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return [f"--tls_cert={cert}", f"--tls_key={key}"]


def run(name, path):
    attack, tls = ATTACKS[name]
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        with open(token, "w") as file:
            file.write("0123456789abcdef-token")
        server = Sluiced(path, folder,
                         ["--admin_token_file=" + token] + (certificate(folder) if tls else []),
                         128 if name == "cve_2023_4785" else None)
        if name.startswith("admin_"):
            server.address = server.admin_address
        try:
            def connect():
                plain = server.connect(address=server.data_address)
                if not tls:
                    return plain
                context = ssl.create_default_context()
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                context.set_alpn_protocols(["h2"])
                return context.wrap_socket(plain)

            honest = HonestThread(connect())
            cpu_before, memory_before = server.cpu_s(), server.resident_bytes()
            honest.start()
            began = time.monotonic()
            # An attacker whose connection was ended connects again.
            sent = times = 0
            while times == 0 or time.monotonic() - began < ATTACK_S:
                sent += attack(server)
                times += 1
            took_s = time.monotonic() - began
            honest.done.set()
            honest.join(2 * PATIENCE_S)
            cpu_s = server.cpu_s() - cpu_before
            grown = server.resident_bytes() - memory_before
            check(not honest.is_alive(), "an honest call was not answered")
            check(honest.error is None, f"the honest client: {honest.error!r}")
            check(honest.answered > 0, "the honest client was not served during the attack")
            refused = honest.client.refused
            check(refused <= 2 + honest.answered // 20,
                  f"{refused} honest calls were refused, {honest.answered} answered")
            Honest(connect()).ask()  # new connections are served too
            print(f"{name:30} {times:4} x, {sent / MIB:6.1f} MiB in {took_s:4.1f} s: "
                  f"{cpu_s:.2f} s of CPU, {grown / MIB:+6.1f} MiB; {honest.answered} honest calls, "
                  f"slowest {honest.slowest_s * 1e3:.0f} ms", flush=True)
            # Per byte, per honest call and per attack (each opens up to 20 connections).
            cpu_bound_s = 0.3 + sent * 20e-9 + honest.answered * 200e-6 + times * 2e-3
            if "slow" in name or "stalled" in name:
                cpu_bound_s += 1  # hundreds of handshakes and timers
            cpu_bound_s *= 2.5  # tolerance for other load on the machine
            check(cpu_s <= cpu_bound_s, f"{cpu_s:.2f} s of CPU; at most {cpu_bound_s:.2f} expected")
            check(grown <= 64 * MIB, f"memory grew by {grown / MIB:.1f} MiB")
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluiced", default="build/bin/sluiced")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    options = parser.parse_args()
    failures = 0
    for name in options.names or ATTACKS:
        try:
            run(name, options.sluiced)
        except (AssertionError, OSError, RuntimeError) as error:
            failures += 1
            print(f"{name:30} FAILED: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
