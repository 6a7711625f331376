"""Attacks on connections, TLS handshakes, the admin port and logging."""
import collections
import hashlib
import secrets
import ssl
import subprocess
import tempfile
import time

import grpc

from http2 import (CANCEL, CONTINUATION, DATA, END_STREAM, GZIP, PREFACE, RST_STREAM, frame,
                   message, settings)
from run import acquisition, attack, batch_message
from server import IdleProgram, admin_grpc, admin_pb

UNKNOWN = 0xF0  # a type of frame that nobody knows
MOST_CONNECTIONS = 2000  # of the attacked server
HONEST = "127.0.0.3"


def is_served(server):
    """Whether an honest call on a connection of its own is answered."""
    try:
        one = server.connect(source=HONEST)
        one.call("Acquire", message(acquisition(("honest", "new"))))
        one.wait(5)
        one.close()
        return one.answers > 0
    except OSError:
        return False


@attack()
def connections_flood(run):
    """As many connections of one address as the port may have: idle, and with an open stream each;
    and further ones again and again."""
    server = run.server(f"--max_connections={MOST_CONNECTIONS}")
    run.begin()
    for has_calls in (False, True):
        flood = []
        for i in range(run.n(MOST_CONNECTIONS + 100)):
            try:
                flood.append(server.connect(source="127.0.0.2"))
            except OSError:
                break
            if has_calls:
                flood[-1].open("AcquireStream")
        served = 0
        for _ in range(20):
            served += is_served(server)
            for _ in range(5):  # the attacker takes what becomes free
                try:
                    flood.append(server.connect(source="127.0.0.2"))
                except OSError:
                    pass
        kind = "with a stream each" if has_calls else "that are idle"
        run.check(served == 20, f"{served} of 20 honest connections beside {len(flood)} {kind}",
                  "20 of 20")
        run.rss(96)
        for one in flood:
            one.close()
        run.released("after they left")
    run.end()


@attack()
def fins_at_once(run):
    """Programs with 20,000 idle connections exit at the same moment, so that each connection ends
    with a FIN, or, if it has not read all, with a reset."""
    server = run.server()
    run.begin()
    for unread in (False, True):
        count = run.n(1000 if server.ca else 5000, at_most=run.most_files // 5)
        programs = [IdleProgram(server, f"127.0.0.{5 + i}", count, unread) for i in range(4)]
        held = sum(program.connections() for program in programs)
        for program in programs:
            program.process.kill()
        served = 0
        for _ in range(5):
            served += is_served(server)
            time.sleep(0.2)
        for program in programs:
            program.process.wait()
        end = "a reset" if unread else "a FIN"
        run.check(served == 5, f"{served} of 5 honest connections while {held} end with {end}",
                  "5 of 5")
        run.released("after they left")
    run.end()


# The start of a ClientHello: a record of 512 bytes, of which the first follow.
PART_OF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)


def handshake(server, timeout_s=2):
    try:
        with server.tcp() as tcp:
            tcp.settimeout(timeout_s)
            with server.tls.wrap_socket(tcp, server_hostname="localhost") as tls:
                return tls.selected_alpn_protocol() == "h2"
    except OSError:
        return False


def honest_handshakes(run, server, what):
    served = sum(handshake(server) for _ in range(5))
    run.check(served == 5, f"{served} of 5 honest handshakes beside {what}",
              "5 of 5, each within 2 s")


@attack()
def handshake_slots(run):
    """TLS: connections that never send anything take all slots for handshakes."""
    server = run.server(tls=True)
    if not handshake(server):
        raise RuntimeError("no handshake before the attack")
    run.begin()
    silent = [server.tcp() for _ in range(run.n(1024))]
    time.sleep(0.3)
    honest_handshakes(run, server, f"{len(silent)} silent connections")
    run.rss(64)
    for connection in silent:
        connection.close()
    run.released("after they left")
    run.end()


@attack()
def handshake_drip(run):
    """TLS: connections from another address that send a ClientHello byte by byte."""
    server = run.server(tls=True)
    run.begin()
    slow = [server.tcp("127.0.0.2") for _ in range(run.n(1024))]
    for at in range(20):
        for connection in slow:
            try:
                connection.send(PART_OF_HELLO[at:at + 1] if at else PART_OF_HELLO[:8])
            except OSError:
                pass  # closed, to make room
        if at % 8 == 4:
            honest_handshakes(run, server, f"{len(slow)} slow ones")
    run.rss(64)
    for connection in slow:
        connection.close()
    run.released("after they left")
    run.end()


def client_hello():
    """The first bytes of an honest handshake."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


@attack()
def handshake_hellos(run):
    """TLS: a complete ClientHello on each of a thousand connections, and nothing more; others that
    announce the largest one."""
    server = run.server(tls=True)
    hello = client_hello()
    largest = b"\x16\x03\x01\x40\x00\x01\x02\x00\x00\x03\x03"
    run.begin()
    half = [server.tcp(f"127.0.2.{1 + i % 50}") for i in range(run.n(1024))]
    for i, connection in enumerate(half):
        try:
            connection.send(hello if i % 4 else largest)
        except OSError:
            pass  # closed, to make room
    honest_handshakes(run, server, f"{len(half)} half ones")
    run.rss(96)
    for connection in half:
        connection.close()
    run.released("after they left")
    run.end()


@attack()
def failed_handshakes(run):
    """TLS: connections that do not speak TLS and stay open, as fast as they can be opened, with
    parts of a ClientHello between them."""
    server = run.server(tls=True)
    run.begin()
    kept = collections.deque()
    opened = 0
    for _ in range(3):
        until = time.monotonic() + 2
        while time.monotonic() < until:
            try:
                kept.append(server.tcp(f"127.0.3.{1 + opened % 50}"))
                kept[-1].send(PART_OF_HELLO if opened % 8 == 0 else b"GET / HTTP/1.1\r\n")
            except OSError:
                pass  # closed, to make room
            opened += 1
            if len(kept) > run.n(8000, at_most=run.most_files):
                kept.popleft().close()
        honest_handshakes(run, server, f"{opened} that failed")
    run.rss(96)
    for connection in kept:
        connection.close()
    run.released("after they left")
    run.end()


@attack()
def handshake_addresses(run):
    """TLS: silent connections from 200 addresses."""
    server = run.server(tls=True)
    run.begin()
    silent = [server.tcp(f"127.0.1.{1 + i % 200}") for i in range(run.n(2000))]
    time.sleep(0.3)
    honest_handshakes(run, server, f"{len(silent)} silent connections of 200 addresses")
    run.rss(64)
    for connection in silent:
        connection.close()
    run.released("after they left")
    run.end()


@attack()
def handshake_groups(run):
    """TLS: clients that offer only the most expensive key exchanges."""
    server = run.server(tls=True)
    run.begin()
    for group in ("ffdhe8192", "P-521", "P-384", "X448"):
        for _ in range(run.n(5)):
            subprocess.run(["openssl", "s_client", "-connect", server.data, "-groups", group],
                           stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL,
                           timeout=30,
                           check=False)
    honest_handshakes(run, server, "expensive ones")
    run.end()


def tls_by_hand(server, context=None):
    """A connection, its TLS, and the memory into which that writes: what is in it is not sent."""
    tcp = server.tcp()
    received, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = context or server.tls
    tls = context.wrap_bio(received, written, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            tcp.sendall(written.read())
            answer = tcp.recv(65536)
            if not answer:
                raise ConnectionError("the server closed the connection during the handshake")
            received.write(answer)
    return tcp, tls, written


@attack()
def tls_records(run):
    """TLS: a record for each byte, on connections that all send at the same time."""
    server = run.server(tls=True)
    run.begin()
    attackers = []
    for _ in range(run.n(10)):
        tcp, tls, written = tls_by_hand(server)
        tls.write(PREFACE + settings())
        for _ in range(2):
            for byte in frame(UNKNOWN, 0, 0, bytes(16384)):
                tls.write(bytes([byte]))
        attackers.append((tcp, written.read()))
    for tcp, records in attackers:
        tcp.sendall(records)
    run.note(f"{sum(len(records) for _, records in attackers) / 1e6:.1f} MB sent")
    time.sleep(1)  # a reset would keep the server from reading them
    for tcp, _ in attackers:
        tcp.close()
    run.end()


@attack()
def admin_flood(run):
    """Admin port: calls that are reset at once; an endless header block."""
    def rapid_reset(c):
        while True:
            calls = [c.head("ListLimits", service="LimitAdmin") for _ in range(50)]
            yield b"".join(head + frame(DATA, END_STREAM, stream, bytes(5)) +
                           frame(RST_STREAM, 0, stream, CANCEL) for stream, head in calls)

    def continuation(c):
        _, head = c.head("ListLimits", service="LimitAdmin")
        yield head[:4] + b"\0" + head[5:]  # the headers have no end
        while True:
            yield frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 100) * 10

    server = run.server()
    run.begin()
    for flood, most_bytes in ((rapid_reset, 1.4e6), (continuation, 30e6)):
        attacker = server.connect(admin=True)
        until = time.monotonic() + 8
        for piece in flood(attacker):
            if not attacker.write(piece) or attacker.sent > run.n(
                    most_bytes) or time.monotonic() > until:
                break
            attacker.read()
        attacker.read_until_quiet(1)
        run.sent(attacker)
        run.rss(32)
        run.check(attacker.ended, f"{flood.__name__}: connection {attacker.ended or 'stayed open'}",
                  "connection ended")
        attacker.close()
    run.end()


@attack()
def admin_lists(run):
    """Admin port: ListKeys, ListLimits and GetStats in flight, whose answers are not taken."""
    server = run.server()
    run.begin()
    requests = [("ListKeys", message(admin_pb.ListKeysRequest(max_keys=1000))),
                ("ListLimits", message(admin_pb.ListLimitsRequest())),
                ("GetStats", message(admin_pb.GetStatsRequest()))]
    unread = [server.connect(admin=True, window=0) for _ in range(run.n(50))]
    read = [server.connect(admin=True) for _ in range(run.n(3))]
    for i in range(600):
        for attacker in unread if i < 60 else read:
            method, body = requests[i % 3]
            attacker.call(method, body, service="LimitAdmin", seconds=0.2)
            attacker.read()
    for attacker in read:
        attacker.wait(5)
    run.sent(unread + read)
    run.rss(64)
    for attacker in unread + read:
        attacker.close()
    run.released("after they left")
    run.end()


RIGHT_TOKEN = "attacks-" + secrets.token_hex(16)


def clients_file():
    file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    digest = hashlib.sha256(RIGHT_TOKEN.encode()).hexdigest()
    file.write(f"""clients:
  - {{ name: anonymous, limits: ["*"], calls: [acquire, query, admin_view] }}
  - {{ name: holder, limits: ["*"], token_sha256: {digest}, calls: [acquire] }}
""")
    file.flush()
    return file


class Guesser:
    """A connection that sends wrong tokens, on one port after the other."""

    def __init__(self, server, admin):
        self.server, self.admin = server, admin
        self.guesses = self.answered = self.connections = 0
        self.connection = None

    def guess(self, count):
        """Sends so many more, on a new connection if the last one is over."""
        if self.connection is None or self.connection.ended:
            self.leave()
            self.connection = self.server.connect(admin=self.admin)
            self.connections += 1
        method, body, service = (("ListLimits", admin_pb.ListLimitsRequest(), "LimitAdmin")
                                 if self.admin else
                                 ("Acquire", acquisition(("big", "guess")), "RateLimiter"))
        for _ in range(count):
            token = (("authorization", "Bearer " + secrets.token_hex(16)),)
            if not self.connection.call(method, message(body), token, 0.1, service):
                break

    def leave(self):
        if self.connection is not None:
            self.guesses += self.connection.opened
            self.answered += self.connection.opened - len(self.connection.calls)
            self.connection.close()
        self.connection = None


@attack()
def token_guesses(run):
    """Wrong tokens on both ports: on connections that wait for each answer, and then a hundred at a
    time on connections that are opened again and again."""
    clients = clients_file()
    server = run.server(f"--clients={clients.name}")
    run.begin()
    start = time.monotonic()
    holder = server.stub()
    honest, failed = 0, 0

    def call_with_right_token():
        nonlocal honest, failed
        try:
            holder.Acquire(acquisition(("honest", "holder")), timeout=5,
                           metadata=(("authorization", "Bearer " + RIGHT_TOKEN),))
            honest += 1
        except grpc.RpcError:
            failed += 1

    patient = [Guesser(server, admin=i % 2 == 0) for i in range(run.n(14, at_most=16))]
    while time.monotonic() < start + 4:
        for one in patient:
            if one.connection is None or one.connection.ended or not one.connection.calls:
                one.guess(1)
            one.connection.read(0.002)
        call_with_right_token()
    hasty = [Guesser(server, admin=i % 2 == 0) for i in range(2)]
    while time.monotonic() < start + 8:
        for one in hasty:
            one.guess(run.n(100))
            one.connection.wait(0.02)
        call_with_right_token()
    for one in patient + hasty:
        one.leave()
    elapsed = time.monotonic() - start
    answered = sum(one.answered for one in patient + hasty)
    sent = sum(one.guesses for one in patient + hasty)
    connections = sum(one.connections for one in patient + hasty)
    most = 5 + 10 * elapsed
    run.note(f"{sent} wrong tokens on {connections} connections in {elapsed:.0f} s")
    run.check(answered <= most, f"{answered} of them were answered",
              "5 answers, and 10 in each second")
    run.check(failed == 0,
              f"{honest} calls with a right token from the same address, {failed} failed",
              "none failed")
    run.rss(16)
    run.released("after they left")
    run.end()


@attack()
def unread_log(run):
    """Nobody reads the server's stderr, which is full, while callers cause log lines."""
    server = run.server(read_stderr=False)
    if not run.shared:
        server.fill_stderr()
    run.begin()
    admin = admin_grpc.LimitAdminStub(grpc.insecure_channel(server.admin))
    rate = admin_pb.Rate(permits=1)
    answered = 0
    for i in range(run.n(50)):
        limit = admin_pb.Limit(name=f"logged-{i}", rate=rate)
        try:
            admin.PutLimit(admin_pb.PutLimitRequest(limit=limit), timeout=2)  # logged
            admin.DeleteLimit(admin_pb.DeleteLimitRequest(name=limit.name), timeout=2)
            answered += 1
        except grpc.RpcError:
            if i - answered > 2:
                break
        attacker = server.connect()
        attacker.call("Acquire", message(acquisition((f"unknown-{i}", "k"))))
        attacker.write(frame(DATA, 0, 0, b"x" * 10))  # a connection error
        attacker.read(0.01)
        attacker.close()
    run.check(answered == run.n(50),
              f"{answered} of {run.n(50)} admin calls that are logged were answered",
              "all answered")
    probe = server.connect(ledger=run.ledger)
    probe.call("AcquireBatch", batch_message(("big", "log"), count=1), GZIP)
    probe.wait(5)
    run.check(not probe.calls, "a call is " + ("answered" if not probe.calls else "not answered"),
              "answered")
    run.end()
