#!/usr/bin/env python3
"""Server cost of held calls: resident bytes per call beyond the transport's own, and processor time
while no grant time comes.

Opens the same number of calls twice, each time on a new server: once with incomplete requests,
which measures the transport alone, and once with complete ones, which are held.

    tests/bench/transport/held_memory.py [--build build] [--calls 100000] [--seconds 10]
"""
import argparse
import os
import socket
import sys
import tempfile
import time

import idle_connections
import loads

CALLS_PER_CONNECTION = 4000
KEYS = 1000  # calls / KEYS callers wait for each


def frames(count, first, end):
    """Calls on streams 1, 3, ...; without `end` their requests are not complete."""
    out = [idle_connections.HELLO]
    for i in range(count):
        message = loads.framed(loads.field(1, loads.field(1, b"line") +
                                           loads.field(2, b"user:%d" % ((first + i) % KEYS))) +
                               b"\x12\x04\x08\x80\xa3\x05\x18\x01")  # max_wait 86400 s, hold
        block = idle_connections.HEADERS if i == 0 else b"\x83\x86\xc1\xc0\xbf\xbe"
        out.append(idle_connections.frame(1, 4, 1 + 2 * i, block))
        out.append(idle_connections.frame(0, 1 if end else 0, 1 + 2 * i, message))
    # The PING is answered after the server has read everything before it.
    out.append(idle_connections.frame(6, 0, 0, b"are read"))
    return b"".join(out)


def until_pong(connection):
    have = b""
    while b"are read" not in have:
        piece = connection.recv(1 << 20)
        if not piece:
            raise SystemExit("the server closed a connection")
        have = have[-8:] + piece


def cpu_seconds(pid):
    """User and system time of all threads of the process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options, folder, end):
    """Resident bytes per call, and processor time per second."""
    server = loads.Server(options.build, folder, False)
    connections = []
    try:
        # The first round takes the permit of each key; memory allocated once does not count.
        rounds = [KEYS] + [CALLS_PER_CONNECTION] * (options.calls // CALLS_PER_CONNECTION)
        for at, count in enumerate(rounds):
            connection = socket.create_connection(("127.0.0.1", int(server.port)))
            connection.sendall(frames(count, at * CALLS_PER_CONNECTION, end or at == 0))
            until_pong(connection)
            connections.append(connection)
            if at == 0:
                before = idle_connections.resident_kib(server.process.pid)
        time.sleep(0.5)
        held = sum(rounds[1:])
        each = (idle_connections.resident_kib(server.process.pid) - before) * 1024 / held
        spent = cpu_seconds(server.process.pid)
        time.sleep(options.seconds if end else 0)
        return each, (cpu_seconds(server.process.pid) - spent) / options.seconds
    finally:
        for connection in connections:
            connection.close()
        server.process.kill()
        server.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--calls", type=int, default=100000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    # The first grant times are ten minutes away.
    loads.LIMITS = "limits: [{name: line, rate: 1/600s, burst: 1, max_wait: 24h}]\n"
    with tempfile.TemporaryDirectory() as folder:
        own, _ = measure(options, folder, False)
        held, busy = measure(options, folder, True)
        print(f"{options.calls} calls: {own:.0f} B each with incomplete requests, {held:.0f} B while "
              f"held, {held - own:.0f} B beyond the transport's own; the server used "
              f"{busy * 100:.2f} % of a processor while they waited")
    return 0


if __name__ == "__main__":
    sys.exit(main())
