"""An HTTP/2 client by hand, which sends what no proper client sends.

It keeps to the server's flow control, so that it is never closed for that alone. It reads what the
server sends, and acknowledges SETTINGS and PING. Answers are counted and dropped, unless a ledger
records the grants in them.
"""
import gzip
import select
import socket
import ssl
import struct
import time
import zlib

from hpack import Encoder

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(
    10)
ACK = END_STREAM = 1
END_HEADERS = 4
MAX_WINDOW = 2**31 - 1
CANCEL = struct.pack(">I", 8)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GZIP = (("grpc-encoding", "gzip"),)
DEFLATE = (("grpc-encoding", "deflate"),)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values):
    ids = {"header_table": 1, "initial_window": 4, "max_frame": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", ids[k], v) for k, v in values.items()))


def window_update(stream, by):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", by))


class Message(bytes):
    """The bytes of one gRPC message. `charges`: of each of its acquisitions, for the ledger."""

    charges = None
    answer = None  # the class of the answer


def message(proto, compress=False, deflate=False, charges=None, answer=None):
    """With `compress` or `deflate`, the call needs the headers GZIP or DEFLATE."""
    body = proto if isinstance(proto, bytes) else proto.SerializeToString()
    if compress:
        body = gzip.compress(body, 9)
    elif deflate:
        body = zlib.compress(body, 9)
    made = Message(struct.pack(">BI", compress or deflate, len(body)) + body)
    made.charges, made.answer = charges, answer
    return made


def connect(address, timeout_s=5, source="127.0.0.1"):
    """`source`: the address to connect from; all of 127.0.0.0/8 are ours."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout_s, source_address=(source, 0))


class Connection:
    """`window`: how much the server may send ahead on each call. 0: nothing is ever taken.

    `tls`: an SSLContext. `ledger`: records the grants in the answers of calls that were sent
    with a Message that knows its charges. `reads`: False: nothing is read from the socket after
    the greeting.
    """

    def __init__(self, address, window=MAX_WINDOW, tls=None, ledger=None, receive_buffer=None,
                 source="127.0.0.1"):
        self.socket = connect(address, source=source)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.setblocking(False)
        self.encoder = Encoder()
        self.sent = self.received = self.opened = self.answers = 0
        self.calls = set()  # that the server has not ended
        self.ended = None  # why the connection is over
        self.answer_bytes = {}  # by call: of its first answer, with the prefix
        self.reads = True
        self._ledger = ledger
        self._asked = {}  # by call: (moment, message) of those that are not answered
        self._bodies = {}  # by call: bytes of answers that are not complete
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self._in = bytearray()
        self._greeted = False
        self._initial_window = 65535
        self._windows = {0: 65535}  # what we may send: 0, the connection; else a call
        self._taken = 0  # bytes of DATA since the last WINDOW_UPDATE
        self.write(PREFACE + settings(initial_window=window))
        if window:
            self.write(window_update(0, MAX_WINDOW - 65535))
        until = time.monotonic() + 5
        while not self._greeted and not self.ended and time.monotonic() < until:
            self.read(0.1)

    def head(self, method, extra=(), service="RateLimiter", end=False):
        """The HEADERS of a new call: its stream, and the bytes. `service`: in sluice.v1 unless it
        names its package."""
        package = "" if "." in service else "sluice.v1."
        stream = 2 * self.opened + 1
        self.opened += 1
        self.calls.add(stream)
        self._windows[stream] = self._initial_window
        block = self.encoder.encode([
            (":method", "POST"), (":scheme", "http"), (":path", f"/{package}{service}/{method}"),
            (":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers"), *extra])
        return stream, frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)

    def open(self, method, extra=(), service="RateLimiter"):
        """Starts a call whose messages follow."""
        stream, head = self.head(method, extra, service)
        self.write(head)
        return stream

    def send(self, stream, body, end=False, seconds=10):
        """Sends on a call as fast as the server's windows allow. False: it did not."""
        until = time.monotonic() + seconds
        if self._ledger is not None and isinstance(body, Message) and body.charges:
            self._asked.setdefault(stream, []).append((time.monotonic(), body))
        at = 0
        while at < len(body):
            room = min(16384, self._windows[0], self._windows.get(stream, 0))
            if room <= 0:
                if self.ended or stream not in self.calls or time.monotonic() > until:
                    return False
                self.read(0.05)
                continue
            part = body[at:at + room]
            at += len(part)
            self._windows[0] -= len(part)
            self._windows[stream] -= len(part)
            last = end and at == len(body)
            if not self.write(frame(DATA, END_STREAM if last else 0, stream, part)):
                return False
        return True

    def call(self, method, body, extra=(), seconds=10, service="RateLimiter"):
        """A call with one message."""
        return self.send(self.open(method, extra, service), body, end=True, seconds=seconds)

    def reset(self, stream):
        self._forget(stream)
        return self.write(frame(RST_STREAM, 0, stream, CANCEL))

    def write(self, data, seconds=10):
        """Writes bytes, reading meanwhile. False: not all, since the connection is over or
        stuck."""
        until = time.monotonic() + seconds
        data = memoryview(data)
        while data and not self.ended and time.monotonic() < until:
            try:
                count = self.socket.send(data)
                self.sent += count
                data = data[count:]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._poll.modify(self.socket,
                                  select.POLLOUT | (select.POLLIN if self.reads else 0))
                self._poll.poll(100)
                self._poll.modify(self.socket, select.POLLIN)
                self.read()
            except OSError as e:
                self.ended = self.ended or type(e).__name__
        return not data

    def read(self, seconds=0, at_most=1 << 40):
        """Reads what is there, waiting for it at most so long. False: there was nothing."""
        if self.ended or not self.reads or not self._poll.poll(seconds * 1000):
            return False
        while not self.ended and at_most > 0:
            try:
                data = self.socket.recv(min(1 << 20, at_most))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as e:
                data, self.ended = b"", type(e).__name__
            if not data:
                self.ended = self.ended or "closed"
            self.received += len(data)
            at_most -= len(data)
            self._in += data
            self._take_frames()
        return True

    def read_until_quiet(self, seconds, at_most_s=20):
        until = time.monotonic() + at_most_s
        while time.monotonic() < until and self.read(seconds):
            pass

    def wait(self, seconds):
        """Reads until all calls have ended."""
        until = time.monotonic() + seconds
        while self.calls and not self.ended and time.monotonic() < until:
            self.read(0.1)

    def check_open(self):
        """Sets `ended` if the server has closed the connection, also where nothing is read."""
        hangup = select.poll()
        hangup.register(self.socket, select.POLLRDHUP)
        if not self.ended and hangup.poll(0):
            self.ended = "closed"
        return not self.ended

    def close(self):
        self.socket.close()
        self.ended = self.ended or "by us"

    def _forget(self, stream):
        self.calls.discard(stream)
        self.answer_bytes.pop(stream, None)
        self._windows.pop(stream, None)
        self._asked.pop(stream, None)
        self._bodies.pop(stream, None)

    def _take_frames(self):
        at = 0
        replies = b""
        while len(self._in) - at >= 9:
            size = int.from_bytes(self._in[at:at + 3], "big")
            if len(self._in) - at < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._in, at + 3)
            if kind == DATA and stream in self._asked:
                self._take_answer(stream, self._in[at + 9:at + 9 + size])
            payload = bytes(self._in[at + 9:at + 9 + min(size, 256)])
            at += 9 + size
            if kind == DATA:
                self._taken += size
                self.answer_bytes.setdefault(stream, 5 + int.from_bytes(payload[1:5], "big"))
                self.answers += 1
            if kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM:
                self._forget(stream)
            elif kind == SETTINGS and not flags & ACK:
                self._take_settings(payload)
                replies += frame(SETTINGS, ACK, 0)
            elif kind == PING and not flags & ACK:
                replies += frame(PING, ACK, 0, payload)
            elif kind == WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += struct.unpack(">I", payload)[0]
            elif kind == GOAWAY and payload[4:8] != b"\0\0\0\0":
                self.ended = f"GOAWAY {payload[7]} {payload[8:].decode(errors='replace')}".strip()
        del self._in[:at]
        if self._taken > 1 << 24:
            replies += window_update(0, self._taken)
            self._taken = 0
        if replies and not self.ended:
            self.write(replies)

    def _take_answer(self, stream, data):
        """Records the grants of each answer that is complete."""
        body = self._bodies.setdefault(stream, bytearray())
        body += data
        while len(body) >= 5 and len(body) >= 5 + (size := int.from_bytes(body[1:5], "big")):
            answer = bytes(body[5:5 + size])
            del body[:5 + size]
            if self._asked[stream]:
                asked_at, sent = self._asked[stream].pop(0)
                self._ledger.add_results(sent.charges, sent.answer.FromString(answer).results,
                                         asked_at, time.monotonic())

    def _take_settings(self, payload):
        self._greeted = True
        for at in range(0, len(payload), 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == 4:
                for stream in self._windows:
                    if stream:
                        self._windows[stream] += value - self._initial_window
                self._initial_window = value
