#!/usr/bin/env python3
"""Latency at half of capacity, and goodput above it: calls that come whether or not answers do.

The server is pinned to one core, the load (open_loop_load.cc) to another. h2 and grpc++ run beside
each other and are measured in turn.

    tests/bench/transport/open_loop.py [--build build] [--rounds 3] [--seconds 2]
        [--only latency|overload_unary|overload_batch]

latency: both servers get the same calls a second: half of what the lesser of the two can do, and
then half of what h2 can. Times count from when a call was to be sent.

overload: ten times the measured peak is offered to h2 on 64 connections of up to 4096 calls in
flight each. What counts is the goodput for each second of CPU that the server got, against the same
figure at the peak, so that a machine that is shared does not fail the server; health is asked for
meanwhile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import loads


class Load:
    def __init__(self, options, folder, path, body):
        self.program = os.path.join(options.build, "bin", "open_loop_load")
        self.path = path
        self.body = os.path.join(folder, path)
        with open(self.body, "wb") as out:
            out.write(body)

    def run(self, server, **flags):
        """The program's figures, and the CPU that the server used meanwhile."""
        before = server.cpu_s()
        command = ["taskset", "-c", "1", self.program, f"--port={server.port}",
                   f"--path=/sluice.v1.RateLimiter/{self.path}", f"--body={self.body}"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        figures = json.loads(out.stdout)
        figures["cpu_s"] = server.cpu_s() - before
        return figures


def latency(options, folder):
    load = Load(options, folder, "Acquire", loads.unary(0))
    servers = {t: loads.Server(options.build, t, folder, False) for t in ("h2", "grpc")}
    try:
        compare_latency(options, load, servers)
    finally:
        for server in servers.values():
            server.stop()


def compare_latency(options, load, servers):
    time.sleep(0.2)
    capacity = {}
    for transport, server in servers.items():
        load.run(server, seconds=0.3)
        capacity[transport] = load.run(server, seconds=1)["ok_per_s"]
    print(f"capacity, 8 connections x 32: h2 {capacity['h2']:.0f}/s grpc {capacity['grpc']:.0f}/s")
    for of in ("grpc", "h2"):
        rate = int(capacity[of] / 2)
        rounds = {t: [] for t in servers}
        for _ in range(options.rounds):
            for transport, server in servers.items():
                if of == "h2" and transport == "grpc":
                    continue  # beyond what it can do
                rounds[transport].append(load.run(server, rate=rate, in_flight=1000,
                                                  seconds=options.seconds))
        for transport, results in rounds.items():
            if results:
                print(f"  {rate}/s (half of {of}'s) {transport:5}" + "".join(
                    f"  {name} {statistics.median(r[key] for r in results):.0f} us"
                    for name, key in (("p50", "p50_us"), ("p99", "p99_us"),
                                      ("p99.9", "p999_us"))), flush=True)


def overload(options, folder, path, body):
    load = Load(options, folder, path, body)
    server = loads.Server(options.build, "h2", folder, False)
    try:
        compare_goodput(options, load, server)
    finally:
        server.stop()


def compare_goodput(options, load, server):
    time.sleep(0.2)
    load.run(server, seconds=0.3)
    shares = []
    for _ in range(options.rounds):
        # The peak before and after: a machine may be half as fast a second later.
        peaks = [load.run(server, warm_up=0, seconds=0.5, in_flight=64)]
        rate = 10 * peaks[0]["ok_per_s"]
        over = load.run(server, warm_up=0, seconds=options.seconds, rate=rate, connections=64,
                        in_flight=4096, probe_ms=10)
        peaks.append(load.run(server, warm_up=0, seconds=0.5, in_flight=64))
        peak = sum(p["ok"] for p in peaks) / sum(p["cpu_s"] for p in peaks)
        goodput = over["ok"] / over["cpu_s"]
        shares.append(goodput / peak)
        print(f"{load.path}: peak {peak:.0f} a CPU second; {rate:.0f}/s offered: {goodput:.0f} "
              f"({shares[-1] * 100:.0f} %), refused {over['refused_per_s']:.0f}/s, health "
              f"{over['probes_answered']} of {over['probes']} answered, p50 "
              f"{over['probe_p50_us'] / 1000:.0f} ms, max {over['probe_max_us'] / 1000:.0f} ms",
              flush=True)
    print(f"{load.path}: median of {len(shares)} rounds {statistics.median(shares) * 100:.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.only in ("", "latency"):
            latency(options, folder)
        if options.only in ("", "overload_unary"):
            overload(options, folder, "Acquire", loads.unary(0))
        if options.only in ("", "overload_batch"):
            overload(options, folder, "AcquireBatch", loads.batches(0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
