"""What the recipes run against: sluiced on free ports, a link that loses answers, a model, a
payment provider, an origin, Redis. All on loopback; each is stopped with close."""
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

WAIT_S = 60


def eventually(condition, what):
    """Waits until `condition()` is true."""
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.02)


class Redis:
    """A redis-server on a Unix socket, for the nodes of a test."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-recipes-redis-")
        path = os.path.join(self.folder.name, "socket")
        self.store = f"--store=unix://{path}"
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly",
             "no", "--dir", self.folder.name], stdout=subprocess.DEVNULL)
        eventually(lambda: os.path.exists(path), "Redis listens")

    def close(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        self.folder.cleanup()


class Sluiced:
    """A server with the store in memory, unless `flags` name another."""

    def __init__(self, program, limits, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-recipes-")
        path = os.path.join(self.folder.name, "limits.yaml")
        with open(path, "w") as file:
            file.write(limits)
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen(
            [program, f"--limits={path}", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0", "--drain_notice=0s", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.log.seek(0)
            raise AssertionError(f"sluiced said {line!r} and: {self.log.read()}")
        ports = dict(field.split("=", 1) for field in line.split()[1:])
        self.data, self.http = ports["data"], ports["http"]

    def close(self, kill=False):
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
        if code != 0 and not kill:
            raise AssertionError(f"sluiced ended with {code}")

    def call(self, method, message):
        connection = http.client.HTTPConnection(self.http, timeout=WAIT_S)
        try:
            connection.request("POST", f"/v1/{method}", json.dumps(message),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            document = json.loads(response.read())
            if response.status != 200:
                raise AssertionError(f"{method}: {document}")
            return document
        finally:
            connection.close()

    def bucket(self, limit, key):
        return self.call("query", {"buckets": [{"limit": limit, "key": key}]})["buckets"][0]

    def remaining(self, limit, key):
        return int(self.bucket(limit, key)["remaining"])


class Link:
    """A TCP port that passes connections on to `target`, which may change. It can lose the answers
    of the next connections: the request arrives, and the connection is reset before the answer."""

    def __init__(self, target):
        self.target = target
        self.lose = 0      # connections whose answer is lost
        self.lost = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        host, port = self.target.rsplit(":", 1)
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:
            client.close()
            return
        lose, self.lose = self.lose > 0, max(0, self.lose - 1)
        up = threading.Thread(target=self.copy, args=(client, server), daemon=True)
        up.start()
        if lose:
            server.recv(1)  # the answer has come: the call was executed
            self.lost += 1
            client.shutdown(socket.SHUT_RDWR)
        else:
            self.copy(server, client)
        up.join()
        client.close()
        server.close()

    @staticmethod
    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class HttpFake:
    """An HTTP server whose handler is the nested class Handler, with `fake` as its attribute."""

    def __init__(self):
        handler = type("Handler", (self.Handler,), {"fake": self, "log_message": lambda *_: None})
        server = type("Server", (http.server.ThreadingHTTPServer,), {"request_queue_size": 128})
        self.server = server(("127.0.0.1", 0), handler)
        self.server.handle_error = lambda *_: None  # a client that left
        self.address = "127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Model(HttpFake):
    """Streams as many tokens as the request's `tokens`, then the usage. A request with `hang` sends
    its tokens and then nothing until `proceed` is set; one with `fail` is answered 500."""

    def __init__(self):
        self.proceed = threading.Event()
        self.lock = threading.Lock()
        self.running = self.most = self.served = 0
        super().__init__()

    def change(self, by):
        with self.lock:
            self.running += by
            self.served += by > 0
            self.most = max(self.most, self.running)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(500 if asked.get("fail") else 200)
            self.end_headers()
            if asked.get("fail"):
                return
            self.fake.change(1)
            try:
                for _ in range(asked["tokens"]):
                    self.wfile.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
                if asked.get("hang"):
                    self.fake.proceed.wait(WAIT_S)
                usage = {"total_tokens": asked["total"]}
                self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
                                 "data: [DONE]\n\n".encode())
            finally:
                self.fake.change(-1)


class Provider(HttpFake):
    """Counts the payments of each order. `delay` holds the answer back; `hang` does so until the
    provider is closed."""

    def __init__(self):
        self.payments = {}  # order -> number of calls
        self.lock = threading.Lock()
        self.answer = threading.Event()
        self.answer.set()
        super().__init__()

    def calls(self, order):
        with self.lock:
            return self.payments.get(order, 0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(200 if self.fake.calls(self.path.rsplit("/", 1)[1]) else 404)

        def do_POST(self):
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["order"]
            with self.fake.lock:
                self.fake.payments[order] = self.fake.payments.get(order, 0) + 1
            self.fake.answer.wait(WAIT_S)
            self.reply(402 if order.startswith("refused") else 200)

        def reply(self, status):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")


class Origin:
    """A TCP server that sends `pieces` to each connection, with a pause between them."""

    def __init__(self, pieces, pause_s=0):
        self.pieces, self.pause_s = pieces, pause_s
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                for piece in self.pieces:
                    connection.sendall(piece)
                    time.sleep(self.pause_s)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
