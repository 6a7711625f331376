#!/usr/bin/env python3
"""Server memory per idle connection: resident KiB, without TLS and with it.

Each connection sends the preface and SETTINGS, acknowledges the server's, makes one Acquire, and is
then idle. The server's resident memory is read from /proc; it does not include the kernel's memory
for the sockets.

    tests/bench/transport/idle_connections.py [--build build] [--connections 10000]

Both processes need a descriptor per connection: raises the soft limit to the hard one.
"""
import argparse
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import loads


def frame(kind, flags, stream, payload=b""):
    return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") +
            payload)


def text(value):
    return bytes([len(value)]) + value


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(4, 1, 0)
HEADERS = (b"\x83\x86\x44" + text(b"/sluice.v1.RateLimiter/Acquire") + b"\x41" +
           text(b"localhost") + b"\x5f" + text(b"application/grpc") + b"\x40" + text(b"te") +
           text(b"trailers"))
CALL = frame(1, 4, 1, HEADERS) + frame(0, 1, 1, loads.unary(0))


def resident_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as smaps:
        for line in smaps:
            if line.startswith("Rss:"):
                return int(line.split()[1])
    raise SystemExit("no Rss in smaps_rollup")


def connect(server, context):
    connection = socket.create_connection(("127.0.0.1", int(server.port)))
    if context:
        connection = context.wrap_socket(connection, server_hostname="localhost")
    connection.sendall(HELLO + CALL)
    return connection


def answered(connection):
    """Reads until the call's trailers: HEADERS of stream 1 that end it."""
    have = b""
    while True:
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit("the server closed a connection")
        have += piece
        while len(have) >= 9 and len(have) >= 9 + int.from_bytes(have[:3], "big"):
            size = int.from_bytes(have[:3], "big")
            if have[3] == 1 and have[4] & 1:
                return
            have = have[9 + size:]


def measure(options, folder, tls):
    server = loads.Server(options.build, folder, tls)
    context = None
    if tls:
        context = ssl.create_default_context(cafile=os.path.join(folder, "cert.pem"))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
    connections = []
    try:
        for _ in range(100):  # memory that the server allocates once does not count
            connections.append(connect(server, context))
            answered(connections[-1])
        before = resident_kib(server.process.pid)
        batch = []
        for _ in range(options.connections):
            batch.append(connect(server, context))
            if len(batch) == 50:
                for connection in batch:
                    answered(connection)
                connections += batch
                batch = []
        for connection in batch:
            answered(connection)
        connections += batch
        time.sleep(1)
        each = (resident_kib(server.process.pid) - before) / options.connections
        print(f"{'TLS' if tls else 'plain':5} {options.connections} connections: "
              f"{each:.1f} KiB each", flush=True)
    finally:
        for connection in connections:
            connection.close()
        server.process.kill()
        server.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--connections", type=int, default=10000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < options.connections + 500:
        raise SystemExit(f"only {hard} descriptors are allowed: raise the limit (ulimit -Hn), or "
                         "ask for fewer --connections")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-keyout", f"{folder}/key.pem", "-out",
                        f"{folder}/cert.pem"], check=True, capture_output=True)
        for tls in (False, True):
            measure(options, folder, tls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
