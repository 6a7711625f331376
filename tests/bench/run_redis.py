#!/usr/bin/env python3
"""Measures decisions of the Redis store over the wire: CPU time of the node and of Redis.

Starts a redis-server on a Unix socket, several nodes, and one load that uses them in turn for several
rounds. CPU time is read from /proc, so other load on the machine disturbs little. The load has a
core of its own; the nodes and Redis share another.

    tests/bench/run_redis.py [--build build] [--other BUILD]... [--rounds 3] [--seconds 2]
                             [--rate 1/5s] [--only costs|overload]

Rows: one hot key and random keys, 8 connections x 32 in flight; with the memory store, with Redis
on the event loop of the data port, and with Redis on a separate loop (--store_threads=1). --other
adds build folders of other versions to the same rounds.

overload: random keys, and more and more callers than Redis can answer within the store's budget, on
64 connections. The result is the goodput relative to 8 x 32 in the same round. Redis shares the
load's core, so that the node cannot starve it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")
# Grants every request. At one permit in 5 s a bucket still exists at its next request; at 100 in a
# second it would be full, and dropped.
LIMITS = "limits: [{name: api, rate: %s, burst: 100000000}]\n"
ALLOW = "limits: [{name: api, rate: %s, burst: 100000000, on_store_failure: allow}]\n"


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


def body():
    message = field(1, field(1, b"api") + field(2, b"user:000042"))
    return b"\0" + len(message).to_bytes(4, "big") + message


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
    def __init__(self, name, build, folder, flags, limits):
        self.name = name
        path = os.path.join(folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(limits)
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", os.path.join(build, "bin", "sluiced"), "--limits=" + path,
             "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--log_level=error",
             "--drain_notice=0s", "--threads=1", *flags],
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rate", default="1/5s", help="of each bucket")
    parser.add_argument("--other", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", choices=["costs", "overload"])
    options = parser.parse_args()
    options.load = os.path.join(options.build, "bin", "open_loop_load")
    with tempfile.TemporaryDirectory() as folder:
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
