#!/usr/bin/env python3
"""Measures decisions of the Redis store over the wire: CPU time of the node and of Redis.

Starts a redis-server on a Unix socket, several nodes, and one load that uses them in turn for several
rounds. CPU time is read from /proc, so other load on the machine disturbs little. The load has a
core of its own; the nodes and Redis share another.

    tests/bench/run_redis.py [--build build] [--other BUILD]... [--rounds 3] [--seconds 2]
                             [--rate 1/5s] [--threads 1] [--only costs|overload|core] [--er PROGRAM]

Rows: one hot key and random keys, 8 connections x 32 in flight; with the memory store, with Redis
on the event loop of the data port, and with Redis on a separate loop (--store_threads=1). --other
adds build folders of other versions to the same rounds.

overload: random keys, and more and more callers than Redis can answer within the store's budget, on
64 connections. The result is the goodput relative to 8 x 32 in the same round. Redis shares the
load's core, so that the node cannot starve it.

core: Redis has a core of its own, and the node and the load share the other: what a decision costs
Redis and the node, and so how many decisions a second a core of Redis makes. Each server has a Redis
of its own with the same keys, which stay. A first round that does not count makes most of them.
--threads gives each node of ours so many event loops, each with a connection of its own. --er adds
envoyproxy/ratelimit, as it ships and with its implicit pipelining. Meanwhile another client sends
PING to that Redis every 2 ms, and its 99th percentile is shown. Rows:

    random keys   8 connections x 32 in flight, and 64 x 64
    one caller    alone, on one key
    two charges   each request charges a random user's bucket and one that all share, 8 x 32

The ratios are medians of the rounds' ratios.
"""
import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TICK = os.sysconf("SC_CLK_TCK")
# Grants every request. At one permit in 5 s a bucket still exists at its next request; at 100 in a
# second it would be full, and dropped.
LIMITS = "limits: [{name: api, rate: %s, burst: 100000000}]\n"
ALLOW = "limits: [{name: api, rate: %s, burst: 100000000, on_store_failure: allow}]\n"
# Of core: buckets live for longer than all rounds, as the counters of --er do.
CORE_LIMITS = ("limits: [{name: api, rate: 1/10m, burst: 3000000},"
               " {name: user, rate: 1/10m, burst: 3000000, charges: [overall]},"
               " {name: overall, rate: 1/10m, burst: 3000000}]\n")


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


def body(limit=b"api"):
    return framed(field(1, field(1, limit) + field(2, b"user:000042")))


def descriptor(key, value):
    return field(2, field(1, field(1, key) + field(2, value)))


def er_body(charges):
    message = field(1, b"bench")
    if charges > 1:
        message += descriptor(b"overall", b"all")
    return framed(message + descriptor(b"user", b"user:000042"))


def cpu_s(process):
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Redis:
    def __init__(self, folder, core=0):
        self.socket = os.path.join(folder, "redis.sock")
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), "redis-server", "--port", "0", "--unixsocket", self.socket,
             "--save", "", "--appendonly", "no", "--dir", folder],
            stdout=subprocess.DEVNULL)
        while subprocess.run(["redis-cli", "-s", self.socket, "ping"], capture_output=True,
                             check=False).stdout != b"PONG\n":
            time.sleep(0.05)


class Node:
    def __init__(self, name, build, folder, flags, limits, core=0, threads=1):
        self.name = name
        path = os.path.join(folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(limits)
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), os.path.join(build, "bin", "sluiced"), "--limits=" + path,
             "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--log_level=error",
             "--drain_notice=0s", f"--threads={threads}", *flags],
            stdout=subprocess.PIPE, text=True)
        found = re.search(r"data=\S*:(\d+)", self.process.stdout.readline())
        if not found:
            raise SystemExit(f"{name} does not start")
        self.port = found.group(1)
        self.rows = {}

    def load(self, options, redis, row, digits, body_file):
        before = cpu_s(self.process), cpu_s(redis.process)
        out = subprocess.run(
            ["taskset", "-c", "1", options.load, f"--port={self.port}",
             "--path=/sluice.v1.RateLimiter/Acquire", f"--body={body_file}",
             f"--seconds={options.seconds}", f"--random_digits={digits}", "--warm_up=0"],
            capture_output=True, text=True, check=True).stdout
        result = json.loads(out)
        node, server = cpu_s(self.process) - before[0], cpu_s(redis.process) - before[1]
        # A machine that is busy with other things makes some calls so late that they are shed.
        if result["unanswered"] > 0 or result["refused_per_s"] > result["ok_per_s"] / 50:
            raise SystemExit(f"{self.name}: {out}")
        self.rows.setdefault(row, []).append(
            (node / result["ok"] * 1e6, server / result["ok"] * 1e6, result["ok_per_s"],
             result["p99_us"]))

    def overload(self, options, connections, in_flight, body_file):
        """Answers and refusals a second."""
        out = subprocess.run(
            ["taskset", "-c", "1", options.load, f"--port={self.port}",
             "--path=/sluice.v1.RateLimiter/Acquire", f"--body={body_file}",
             f"--seconds={options.seconds}", "--random_digits=5", "--warm_up=0.3",
             f"--connections={connections}", f"--in_flight={in_flight}"],
            capture_output=True, text=True, check=True).stdout
        result = json.loads(out)
        self.rows.setdefault((connections, in_flight), []).append(
            (result["ok_per_s"], result["refused_per_s"]))

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def overload(options, folder, body_file):
    redis = Redis(folder, core=1)
    builds = [("redis", options.build)]
    builds += [(f"other_{i}", build) for i, build in enumerate(options.other)]
    nodes = [Node(name, build, folder, [f"--store=unix://{redis.socket}"], LIMITS % options.rate)
             for name, build in builds]
    callers = [(8, 32), (64, 64), (64, 256), (64, 1024)]
    try:
        for _ in range(options.rounds):
            for node in nodes:
                for connections, in_flight in callers:
                    node.overload(options, connections, in_flight, body_file)
                    time.sleep(1)  # what was left unanswered is over
    finally:
        for node in nodes:
            node.stop()
        redis.process.terminate()
        redis.process.wait()
    for node in nodes:
        peaks = [ok for ok, _ in node.rows[callers[0]]]
        for row in callers:
            ok, refused = (statistics.median(r[i] for r in node.rows[row]) for i in range(2))
            of_peak = statistics.median(r[0] / peak for r, peak in zip(node.rows[row], peaks))
            print(f"{row[0]:3} x {row[1]:4} {node.name:8} answered {ok:7.0f}/s, "
                  f"{of_peak:4.0%} of 8 x 32; refused {refused:7.0f}/s")


class Pings:
    """Another client of a Redis: how long its PINGs take while it lasts, in microseconds."""

    def __init__(self, path):
        self.times = []
        self.stopped = threading.Event()
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:  # before the load, with which it shares a core
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            pass
        while not self.stopped.wait(0.002):
            start = time.perf_counter()
            self.connection.sendall(b"PING\r\n")
            self.connection.recv(64)
            self.times.append((time.perf_counter() - start) * 1e6)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        self.connection.close()


REDIS_CORE, OTHERS_CORE = 0, 1
# Name, connections, in flight, random digits, charges.
CORE_LOADS = [("random keys, 8 x 32", 8, 32, 5, 1), ("random keys, 64 x 64", 64, 64, 5, 1),
              ("one caller, one key", 1, 1, 0, 1), ("two charges, 8 x 32", 8, 32, 5, 2)]


class OnRedis:
    """A server on a Redis of its own."""

    def __init__(self, name, folder, start):
        self.name = name
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.redis = Redis(self.folder, core=REDIS_CORE)
        try:
            self.process, self.port, self.path, self.bodies, self.stop_server = start(self)
        except BaseException:
            self.redis.process.kill()
            raise
        self.rows = {}

    def stop(self):
        self.stop_server()
        self.redis.process.terminate()
        self.redis.process.wait()

    def counters(self):
        """Reads and scripts of Redis."""
        info = subprocess.run(["redis-cli", "-s", self.redis.socket, "info", "everything"],
                              capture_output=True, text=True, check=True).stdout
        scripts = re.search(r"cmdstat_evalsha:calls=(\d+)", info)
        return (int(re.search(r"total_reads_processed:(\d+)", info).group(1)),
                int(scripts.group(1)) if scripts else 0)

    def load(self, options, load, counts):
        name, connections, in_flight, digits, charges = load
        path = os.path.join(self.folder, "body")
        with open(path, "wb") as out:
            out.write(self.bodies[charges])
        with Pings(self.redis.socket) as pings:
            before = cpu_s(self.process), cpu_s(self.redis.process), *self.counters()
            start = time.monotonic()
            out = subprocess.run(
                ["taskset", "-c", str(OTHERS_CORE), options.load, f"--port={self.port}",
                 f"--path={self.path}", f"--body={path}", f"--seconds={options.seconds}",
                 f"--random_digits={digits}", "--warm_up=0", f"--connections={connections}",
                 f"--in_flight={in_flight}"], capture_output=True, text=True, check=True).stdout
            lasted = time.monotonic() - start
            after = cpu_s(self.process), cpu_s(self.redis.process), *self.counters()
        result = json.loads(out)
        done = result["ok"]
        if done == 0:
            print(f"{self.name}, {name}, left out: {out}", file=sys.stderr)
        if done == 0 or not counts:
            return
        node, redis, reads, scripts = (b - a for a, b in zip(before, after))
        pings.times.sort()
        self.rows.setdefault(name, []).append({
            "node": node / done * 1e6, "redis": redis / done * 1e6, "rate": result["ok_per_s"],
            "refused": result["refused_per_s"], "busy": redis / lasted, "reads": done / max(reads, 1),
            "scripts": done / scripts if scripts else 0,
            "ping": pings.times[int(len(pings.times) * 0.99)]})


def sluice_on(build, threads):
    def start(server):
        node = Node("node", build, server.folder, [f"--store=unix://{server.redis.socket}"],
                    CORE_LIMITS, core=OTHERS_CORE, threads=threads)
        return (node.process, node.port, "/sluice.v1.RateLimiter/Acquire",
                {1: body(), 2: body(b"user")}, node.stop)
    return start


def er_on(program, variables):
    sys.path.append(os.path.join(os.path.dirname(HERE), "envoy"))
    import limiter  # needs PyYAML

    def start(server):
        runtime = limiter.Runtime(os.path.join(server.folder, "runtime"))
        of_all = {"unit": "hour", "requests_per_unit": 4000000000}
        runtime.publish([{"domain": "bench", "descriptors": [
            {"key": "user", "rate_limit": of_all},
            {"key": "overall", "value": "all", "rate_limit": of_all}]}])
        one = limiter.Limiter(["taskset", "-c", str(OTHERS_CORE), program], server.folder, runtime,
                              REDIS_SOCKET_TYPE="unix", REDIS_URL=server.redis.socket, **variables)
        return (one.process, one.grpc_port,
                "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                {1: er_body(1), 2: er_body(2)}, one.stop)
    return start


def core(options, folder):
    starts = [("sluice", sluice_on(options.build, options.threads))]
    starts += [(f"other_{i}", sluice_on(build, options.threads))
               for i, build in enumerate(options.other)]
    if options.er:
        pipelining = {"REDIS_PIPELINE_WINDOW": "150us", "REDIS_PIPELINE_LIMIT": "64"}
        starts += [("er", er_on(options.er, {})), ("er_pipelined", er_on(options.er, pipelining))]
    servers = []
    try:
        for name, start in starts:
            servers.append(OnRedis(name, folder, start))
        for turn in range(options.rounds + 1):
            for load in CORE_LOADS:
                for server in servers:
                    server.load(options, load, counts=turn > 0)
    finally:
        for server in servers:
            server.stop()
    print("CPU in us a decision; a core: decisions a second of Redis' CPU; in brackets: sluice, of this")
    for load in CORE_LOADS:
        own = servers[0].rows.get(load[0])
        for server in servers:
            rounds = server.rows.get(load[0])
            if not own or not rounds:
                continue

            def median(what):
                return statistics.median(one[what] for one in rounds)

            def ratio(what):
                # CPU time has ticks of 10 ms, so a short round may show none.
                return statistics.median(a[what] / max(b[what], 1e-9)
                                         for a, b in zip(own, rounds))
            print(f"{load[0]:21}{server.name:13}redis {median('redis'):6.2f} "
                  f"({ratio('redis'):.2f})  node {median('node'):6.2f} ({ratio('node'):.2f})  "
                  f"a core {1e6 / max(median('redis'), 1e-9):7.0f}/s ({1 / max(ratio('redis'), 1e-9):.2f})  "
                  f"answered {median('rate'):6.0f}/s, refused {median('refused'):6.0f}/s, "
                  f"Redis {median('busy'):4.0%} busy, "
                  f"{median('reads'):5.1f} decisions a read and {median('scripts'):4.1f} a script, PING p99 {median('ping'):5.0f} us "
                  f"({ratio('ping'):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rate", default="1/5s", help="of each bucket")
    parser.add_argument("--other", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", type=int, default=1, help="event loops of a node, for core")
    parser.add_argument("--only", choices=["costs", "overload", "core"])
    parser.add_argument("--er", metavar="PROGRAM", help="of envoyproxy/ratelimit, for core")
    options = parser.parse_args()
    options.load = os.path.join(options.build, "bin", "open_loop_load")
    with tempfile.TemporaryDirectory() as folder:
        if options.only == "core":
            core(options, folder)
            return 0
        body_file = os.path.join(folder, "body")
        with open(body_file, "wb") as out:
            out.write(body())
        if options.only != "costs":
            overload(options, folder, body_file)
        if options.only == "overload":
            return 0
        redis = Redis(folder)
        url = f"--store=unix://{redis.socket}"
        limits = LIMITS % options.rate
        nodes = [Node("memory", options.build, folder, [], limits),
                 Node("redis", options.build, folder, [url], limits),
                 Node("redis_own_loop", options.build, folder, [url, "--store_threads=1"], limits)]
        nodes += [Node(f"other_{i}", build, folder, [url], limits)
                  for i, build in enumerate(options.other)]
        # One whose Redis is not there, and whose limit says allow.
        nodes.append(Node("away", options.build, folder,
                          [f"--store=unix://{folder}/nobody.sock"], ALLOW % options.rate))
        try:
            for _ in range(options.rounds):
                for row, digits in (("hot key", 0), ("random keys", 5)):
                    for node in nodes:
                        node.load(options, redis, row, digits, body_file)
        finally:
            for node in nodes:
                node.stop()
            redis.process.terminate()
            redis.process.wait()
    memory = {row: statistics.median(r[0] for r in got) for row, got in nodes[0].rows.items()}
    for row in ("hot key", "random keys"):
        for node in nodes:
            got = node.rows[row]
            cpu, server, rate, p99 = (statistics.median(r[i] for r in got) for i in range(4))
            print(f"{row:12} {node.name:15} us of CPU a decision: node {cpu:6.2f} "
                  f"({cpu / memory[row]:.2f}x memory) redis {server:6.2f} both {cpu + server:6.2f}"
                  f"   {rate:7.0f}/s  p99 {p99:6.0f} us   nodes' all: "
                  + " ".join(f"{r[0]:.2f}" for r in got))
    return 0


if __name__ == "__main__":
    sys.exit(main())
