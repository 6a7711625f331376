#!/usr/bin/env python3
"""Server CPU per unary Acquire, several servers side by side.

h2load (Debian's nghttp2-client) is pinned to one core and the servers to another. All servers run
throughout. They are measured in turn, for several rounds, so that other load on the machine affects
all of them. CPU time is that of the server process, from /proc/PID/stat.

    tests/bench/transport/run.py [--build build] [--rounds 3] [--requests 60000]
        [--connections 8] [--streams 32] [--server NAME=COMMAND ...]

Servers without --server: `empty` (a grpc++ callback handler that does nothing: the baseline) and
`sluiced`. A command must print `ready data=HOST:PORT ...` on stdout. The last column compares each
server with the first.
"""

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

TICKS = os.sysconf("SC_CLK_TCK")
LIMITS = "limits: [{name: api, rate: 1000000/s, burst: 1000000}]\n"


def field(number, payload):
    """A length-delimited protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def acquire_request():
    """A gRPC message: AcquireRequest with one charge."""
    message = field(1, field(1, b"api") + field(2, b"user:42"))
    return b"\0" + len(message).to_bytes(4, "big") + message


class Server:
    def __init__(self, name, command, core):
        self.name = name
        self.process = subprocess.Popen(["taskset", "-c", str(core)] + command,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = self.process.stdout.readline().decode()
        found = re.match(r"ready data=(\S+)", line)
        if not found:
            raise SystemExit(f"{name}: printed {line!r} instead of ready data=HOST:PORT")
        self.address = found.group(1)
        self.us_per_call = []
        self.calls_per_s = []

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measure(self, options, body, core):
        before = self.cpu_s()
        out = subprocess.run(
            ["taskset", "-c", str(core), "h2load", "-t", "1", "-n", str(options.requests),
             "-c", str(options.connections), "-m", str(options.streams), "-d", body,
             "-H", "content-type: application/grpc", "-H", "te: trailers",
             f"http://{self.address}/sluice.v1.RateLimiter/Acquire"],
            check=True, capture_output=True, text=True).stdout
        used = self.cpu_s() - before
        done = int(re.search(r"(\d+) succeeded", out).group(1))
        if done != options.requests:
            raise SystemExit(f"{self.name}: {done} of {options.requests} calls succeeded\n{out}")
        self.us_per_call.append(used / done * 1e6)
        self.calls_per_s.append(float(re.search(r"([\d.]+) req/s", out).group(1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--server_core", type=int, default=0)
    parser.add_argument("--load_core", type=int, default=1)
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        body = os.path.join(folder, "request.bin")
        limits = os.path.join(folder, "limits.yaml")
        with open(body, "wb") as file:
            file.write(acquire_request())
        with open(limits, "w") as file:
            file.write(LIMITS)
        binaries = os.path.join(options.build, "bin")
        commands = {
            "empty": [os.path.join(binaries, "empty_grpc_server")],
            "sluiced": [os.path.join(binaries, "sluiced"), f"--limits={limits}",
                        "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                        "--http_listen=127.0.0.1:0"],
        }
        if options.server:
            commands = {}
            for one in options.server:
                name, command = one.split("=", 1)
                commands[name] = shlex.split(command.replace("{limits}", limits))
        servers = []
        try:
            for name, command in commands.items():
                servers.append(Server(name, command, options.server_core))
            warm = argparse.Namespace(**{**vars(options), "requests": 5000})
            for server in servers:
                server.measure(warm, body, options.load_core)
                server.us_per_call.clear()
                server.calls_per_s.clear()
            for _ in range(options.rounds):
                for server in servers:
                    server.measure(options, body, options.load_core)
        finally:
            for server in servers:
                server.process.kill()
                server.process.wait()

    print(f"{options.connections} connections x {options.streams} calls in flight, "
          f"{options.rounds} rounds of {options.requests}")
    first = statistics.median(servers[0].us_per_call)
    for server in servers:
        median = statistics.median(server.us_per_call)
        rounds = " ".join(f"{value:.2f}" for value in server.us_per_call)
        print(f"{server.name:12} {median:7.2f} us server CPU per call  ({rounds})  "
              f"{statistics.median(server.calls_per_s):9.0f} calls/s  "
              f"{median / first:5.2f} x {servers[0].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
