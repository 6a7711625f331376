#!/usr/bin/env python3
"""Request smuggling: no body is ever taken for a request, neither directly nor behind a gateway.

Each case hides a request to /v1/check?limit=smuggled in the body of another one. The server counts
the decisions on that limit, so a case that succeeds is seen, whatever the answers say.

usage: smuggling_test.py SLUICED [TEST ...]
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from http_server import Server, WAIT_S

SLUICED = os.path.abspath(sys.argv[1])

HIDDEN = b"GET /v1/check?limit=smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKS = b"0\r\n\r\n" + HIDDEN


def post(headers, body):
    return (b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
            headers + b"\r\n" + body)


def length(size):
    return b"Content-Length: %d\r\n" % size


ALL = len(CHUNKS)
CASES = {
    "length and chunked": post(length(ALL) + b"Transfer-Encoding: chunked\r\n", CHUNKS),
    "chunked and length": post(b"Transfer-Encoding: chunked\r\n" + length(ALL), CHUNKS),
    "two lengths": post(length(0) + length(len(HIDDEN)), HIDDEN),
    "two lengths, other order": post(length(len(HIDDEN)) + length(0), HIDDEN),
    "list of lengths": post(b"Content-Length: %d, 0\r\n" % len(HIDDEN), HIDDEN),
    "signed length": post(b"Content-Length: +%d\r\n" % len(HIDDEN), HIDDEN),
    "length with a space": post(b"Content-Length : %d\r\n" % len(HIDDEN), HIDDEN),
    "folded length": post(b"X: y\r\n Content-Length: %d\r\n" % len(HIDDEN) + length(len(HIDDEN)),
                          HIDDEN),
    "length in hexadecimal": post(b"Content-Length: 0x%x\r\n" % len(HIDDEN), HIDDEN),
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n" + length(ALL), CHUNKS),
    "chunked, identity": post(b"Transfer-Encoding: chunked, identity\r\n" + length(ALL), CHUNKS),
    "identity, chunked": post(b"Transfer-Encoding: identity, chunked\r\n" + length(ALL), CHUNKS),
    "chunked with a tab": post(b"Transfer-Encoding:\tchunked\r\n" + length(ALL), CHUNKS),
    "chunked with a vertical tab":
        post(b"Transfer-Encoding: \x0bchunked\r\n" + length(ALL), CHUNKS),
    "chunked after a line feed":
        post(b"X: y\nTransfer-Encoding: chunked\r\n" + length(ALL), CHUNKS),
    "chunked after a carriage return":
        post(b"X: y\rTransfer-Encoding: chunked\r\n" + length(ALL), CHUNKS),
    "quoted chunked": post(b'Transfer-Encoding: "chunked"\r\n' + length(ALL), CHUNKS),
    "chunked with a NUL": post(b"Transfer-Encoding: chunked\x00\r\n" + length(ALL), CHUNKS),
    "chunked in HTTP/1.0": b"POST /v1/acquire HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive"
                           b"\r\nTransfer-Encoding: chunked\r\n" + length(ALL) + b"\r\n" + CHUNKS,
    "chunk size with a prefix": post(b"Transfer-Encoding: chunked\r\n",
                                     b"0x%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"),
    "chunk size that overflows": post(b"Transfer-Encoding: chunked\r\n",
                                      b"10000000000000000\r\n" + HIDDEN),
    "chunk extension with a line feed": post(b"Transfer-Encoding: chunked\r\n",
                                             b"2;\nxx\r\n%x\r\n" % len(HIDDEN) + HIDDEN +
                                             b"\r\n0\r\n\r\n"),
    "chunk with a wrong end": post(b"Transfer-Encoding: chunked\r\n",
                                   b"1\r\naXX0\r\n\r\n" + HIDDEN),
    "GET with a body": b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" +
                       length(len(HIDDEN)) + b"\r\n" + HIDDEN,
    "HEAD with a body": b"HEAD /openapi.json HTTP/1.1\r\nHost: localhost\r\n" +
                        length(len(HIDDEN)) + b"\r\n" + HIDDEN,
    "unknown path with a body": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n" +
                                length(len(HIDDEN)) + b"\r\n" + HIDDEN,
    "body that is not awaited": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n"
                                b"Expect: 100-continue\r\n" + length(len(HIDDEN)) + b"\r\n" +
                                HIDDEN,
    "large body": b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n" + length(100_000_000) +
                  b"\r\n" + 100 * HIDDEN,
    "upgrade": b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
               b"Upgrade: websocket\r\n" + length(len(HIDDEN)) + b"\r\n" + HIDDEN,
}

# A gateway may take the line feed for the end of the line (RFC 9112, 2.2): then what follows is a
# request of its own.
DIRECT_CASES = {
    "chunk line that ends with a line feed": post(b"Transfer-Encoding: chunked\r\n",
                                                  b"0\n\r\n" + HIDDEN),
}

# The hidden request is one of its own here: sent as it is, it is decided once.
OPEN = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class SmugglingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(SLUICED)

    @classmethod
    def tearDownClass(cls):
        if cls.server.close() != 0:
            raise AssertionError("sluiced did not exit with 0")

    def send(self, port, request):
        """Sends it, and reads what comes until the peer ends or is quiet."""
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
            connection.settimeout(0.3)
            try:
                connection.sendall(request)
                while connection.recv(65536):
                    pass
            except OSError:
                pass

    def expect_nothing_smuggled(self, port, cases):
        before = self.server.granted("smuggled")
        self.send(port, OPEN)
        self.assertEqual(self.server.granted("smuggled"), before + 1)
        for name, request in cases.items():
            with self.subTest(name):
                before = self.server.granted("smuggled")
                self.send(port, request)
                self.assertEqual(self.server.granted("smuggled"), before)

    def test_directly(self):
        self.expect_nothing_smuggled(self.server.port, CASES | DIRECT_CASES)

    def gateway(self, command, port):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait, WAIT_S)
        self.addCleanup(process.send_signal, signal.SIGTERM)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
                return
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    @unittest.skipUnless(shutil.which("nginx"), "nginx is not installed (apt install nginx-light)")
    def test_through_nginx(self):
        port = free_port()
        folder = self.server.folder.name
        config = self.server.write("nginx.conf", f"""
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log /dev/null;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream sluice {{ server {self.server.http}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://sluice;
      proxy_http_version 1.1;
      proxy_set_header Host localhost;
      proxy_set_header Connection "";
      proxy_request_buffering off;
    }}
  }}
}}
""")
        self.gateway([shutil.which("nginx"), "-c", config], port)
        self.expect_nothing_smuggled(port, CASES)

    @unittest.skipUnless(shutil.which("haproxy"), "haproxy is not installed (apt install haproxy)")
    def test_through_haproxy(self):
        port = free_port()
        config = self.server.write("haproxy.cfg", f"""
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
  option http-keep-alive
  http-reuse always
listen front
  bind 127.0.0.1:{port}
  server sluice {self.server.http}
""")
        self.gateway([shutil.which("haproxy"), "-f", config], port)
        self.expect_nothing_smuggled(port, CASES)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
