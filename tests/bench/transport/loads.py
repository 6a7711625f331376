#!/usr/bin/env python3
"""Server CPU per decision, of one build or of several builds side by side.

The server is pinned to one core, h2load (apt: nghttp2-client) to another. Headers that differ in
each call are sent by open_loop_load of the first build. CPU time is that of the
server process, so other load on the machine has little effect. In each round the builds are
measured in turn.

    tests/bench/transport/loads.py [--build build [--build ../other/build]] [--rounds 3]
        [--seconds 2] [--only unary_8x32]

`--build build --build build+clients` says what recognising the callers costs: the second server has
a clients file. Every call has a token.
"""
import argparse
import hashlib
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

# Never empty, and never full again: a full bucket is dropped, and created again at its next use.
LIMITS = "limits: [{name: api, rate: 1/s, burst: 1000000000}]\n"
TOKEN = "0123456789abcdef0123456789abcdef"
WITH_CLIENTS = "+clients"


def framed(message):
    return b"\0" + struct.pack(">I", len(message)) + message


def varint(value):
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, content):
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def acquire(key):
    return field(1, field(1, b"api") + field(2, key))


def unary(client):
    return framed(acquire(b"user:%d" % client))


def batch(first):
    """64 acquisitions of keys that no other batch uses."""
    return framed(b"".join(field(1, acquire(b"user:%d" % (first + i))) for i in range(64)))


def batches(client):
    return batch(client * 64)


def stream(client):
    """AcquireStream: 64 messages of 64 in each call."""
    return b"".join(batch((client * 64 + i) * 64) for i in range(64))


RLS = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def rate_limit_config():
    """10,000 limits of two entries."""
    lines = ["domain: load", "descriptors:"]
    for tenant in range(100):
        lines += ["- key: tenant", f"  value: t{tenant}", "  descriptors:"]
        for path in range(100):
            lines += ["  - key: path", f"    value: /p{path}",
                      "    rate_limit: {unit: hour, requests_per_unit: 1000000000}"]
    return "\n".join(lines) + "\n"


def rate_limit(client, descriptors):
    """Descriptors of two entries each."""
    def entry(key, value):
        return field(1, field(1, key) + field(2, value))
    return framed(field(1, b"load") + b"".join(
        field(2, entry(b"tenant", b"t%d" % (client + i)) + entry(b"path", b"/p%d" % i))
        for i in range(descriptors)))


# name: path, body of a client's calls (None: an HTTP/1.1 GET on the HTTP port), clients, connections
# of each, streams, decisions per call, TLS. h2load sends one body in all its calls: more clients use more keys.
LOADS = {
    "unary_8x32": ("Acquire", unary, 2, 4, 32, 1, False),
    "unary_64x4": ("Acquire", unary, 2, 32, 4, 1, False),
    "unary_64x1": ("Acquire", unary, 2, 32, 1, 1, False),
    "check_64x1": ("/v1/check?limit=api&key=user:", None, 2, 32, 1, 1, False),
    "unary_8x1": ("Acquire", unary, 2, 4, 1, 1, False),
    "batch_64": ("AcquireBatch", batches, 8, 1, 32, 64, False),
    "stream_64": ("AcquireStream", stream, 8, 1, 4, 64 * 64, False),
    "rls_8x32": (RLS, lambda client: rate_limit(client, 1), 2, 4, 32, 1, False),
    "rls4_8x32": (RLS, lambda client: rate_limit(client, 4), 2, 4, 32, 1, False),
    "unary_8x32_tls": ("Acquire", unary, 2, 4, 32, 1, True),
}


# name: --headers of open_loop_load; 8 connections, 32 streams.
CHANGING_HEADERS = {"unary_8x32_timeout": "timeout", "unary_8x32_haproxy": "haproxy"}


class Server:
    def __init__(self, build, folder, tls):
        limits = os.path.join(folder, "limits.yaml")
        with open(limits, "w", encoding="utf-8") as out:
            out.write(LIMITS)
        program = os.path.join(build.removesuffix(WITH_CLIENTS), "bin", "sluiced")
        command = ["taskset", "-c", "0", program,
                   "--limits=" + limits, "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                   "--threads=1", "--log_level=error", "--drain_notice=0s"]
        # Builds from before the HTTP port and before Envoy's service are compared too.
        known = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
        has_http = "--http_listen" in known
        if "--ratelimit_config" in known:
            config = os.path.join(folder, "ratelimit.yaml")
            with open(config, "w", encoding="utf-8") as out:
                out.write(rate_limit_config())
            command.append("--ratelimit_config=" + config)
        if has_http:
            command.append("--http_listen=127.0.0.1:0")
        if build.endswith(WITH_CLIENTS):
            clients = os.path.join(folder, "clients.yaml")
            with open(clients, "w", encoding="utf-8") as out:
                digest = hashlib.sha256(TOKEN.encode()).hexdigest()
                out.write("clients: [{name: load, token_sha256: %s, limits: [api],"
                          " calls: [acquire]}]\n" % digest)
            command.append("--clients=" + clients)
        if tls:
            command += ["--tls_cert=" + os.path.join(folder, "cert.pem"),
                        "--tls_key=" + os.path.join(folder, "key.pem")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        self.port = re.search(r"data=\S*:(\d+)", ready).group(1)
        self.http_port = re.search(r"http=\S*:(\d+)", ready).group(1) if has_http else None
        self.tls = tls

    def cpu_s(self):
        # The clock of the process's CPU time, with the id that clock_getcpuclockid(3) makes. It
        # counts nanoseconds; /proc/PID/stat has ticks of 10 ms.
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def load(self, path, body_files, connections, streams, calls):
        """Microseconds of server CPU per call. The clients share `calls`."""
        calls //= len(body_files)
        if path.startswith("/v1/"):
            what = [["--h1", f"http://127.0.0.1:{self.http_port}{path}{client}"]
                    for client in range(len(body_files))]
        else:
            scheme = "https" if self.tls else "http"
            if not path.startswith("/"):
                path = "/sluice.v1.RateLimiter/" + path
            what = [["-d", body_file, "-H", "te: trailers", "-H", "content-type: application/grpc",
                     "-H", "authorization: Bearer " + TOKEN,
                     f"{scheme}://127.0.0.1:{self.port}{path}"]
                    for body_file in body_files]
        before = self.cpu_s()
        clients = [subprocess.Popen(
            ["taskset", "-c", "1", "h2load", "-n", str(calls), "-c", str(connections), "-m",
             str(streams), *one], stdout=subprocess.PIPE, text=True) for one in what]
        for client in clients:
            out = client.communicate()[0]
            done = re.search(r"(\d+) succeeded", out)
            if client.returncode != 0 or done is None or int(done.group(1)) != calls:
                raise SystemExit(f"not all of {calls} calls succeeded:\n{out}")
        return (self.cpu_s() - before) / (calls * len(body_files)) * 1e6

    def load_changing_headers(self, program, headers, body_file, seconds):
        """Microseconds of server CPU per call."""
        before = self.cpu_s()
        out = subprocess.run(
            ["taskset", "-c", "1", program, f"--port={self.port}", f"--headers={headers}",
             f"--body={body_file}", f"--seconds={seconds}", "--warm_up=0.1",
             "--path=/sluice.v1.RateLimiter/Acquire"],
            check=True, stdout=subprocess.PIPE, text=True).stdout
        return (self.cpu_s() - before) / json.loads(out)["ok"] * 1e6

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def measure_h2load(name, servers, folder, options):
    """Microseconds per decision: by build, one for each round."""
    path, body, clients, connections, streams, decisions, _ = LOADS[name]
    bodies = [os.path.join(folder, f"body{client}") for client in range(clients)]
    for client, body_file in enumerate(bodies):
        with open(body_file, "wb") as out:
            out.write(body(client) if body else b"")
    calls = {}
    for build, server in servers.items():  # warms up, and tells how many calls to make
        few = max(clients * connections * streams, 2000 // min(decisions, 2000))
        cost_us = max(server.load(path, bodies, connections, streams, few), 1)
        calls[build] = max(few, int(options.seconds * 1e6 / cost_us / 2))
    costs_us = {build: [] for build in servers}
    for _ in range(options.rounds):
        for build, server in servers.items():
            costs_us[build].append(server.load(path, bodies, connections, streams, calls[build])
                                   / decisions)
    return costs_us


def measure_changing_headers(name, servers, folder, options):
    """As measure_h2load."""
    program = os.path.join(next(iter(servers)), "bin", "open_loop_load")
    body_file = os.path.join(folder, "body")
    with open(body_file, "wb") as out:
        out.write(unary(0))
    costs_us = {build: [] for build in servers}
    for _ in range(options.rounds):
        for build, server in servers.items():
            costs_us[build].append(server.load_changing_headers(
                program, CHANGING_HEADERS[name], body_file, options.seconds))
    return costs_us


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="append", help="build folder; may repeat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="", help="name of a load: "
                        + ", ".join([*LOADS, *CHANGING_HEADERS]))
    options = parser.parse_args()
    builds = options.build or ["build"]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-keyout", f"{folder}/key.pem", "-out",
                        f"{folder}/cert.pem"], check=True, capture_output=True)
        for name in [*LOADS, *CHANGING_HEADERS]:
            if options.only and options.only != name:
                continue
            tls = name in LOADS and LOADS[name][-1]
            servers = {build: Server(build, folder, tls) for build in builds}
            time.sleep(0.2)
            measure = measure_h2load if name in LOADS else measure_changing_headers
            try:
                costs_us = measure(name, servers, folder, options)
            finally:
                for server in servers.values():
                    server.stop()
            results[name] = costs_us
            first = statistics.median(costs_us[builds[0]])
            for build in builds:
                median = statistics.median(costs_us[build])
                rounds = " ".join(f"{cost:.3f}" for cost in costs_us[build])
                print(f"{name:18} {build:20} {median:.3f} us per decision, median "
                      f"({median / first:.3f} x {builds[0]}); all: {rounds}", flush=True)
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
