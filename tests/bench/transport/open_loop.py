#!/usr/bin/env python3
"""Latency at half of capacity, and goodput above capacity. Calls are sent at a fixed rate, whether
or not earlier ones were answered.

The server is pinned to one core, the load (open_loop_load.cc) to another.

    tests/bench/transport/open_loop.py [--build build] [--rounds 3] [--seconds 2]
        [--only latency|overload_unary|overload_batch]

latency: half of the measured capacity. Times count from the moment at which a call was due.

overload: ten times the measured peak, on 64 connections with up to 1024 calls in flight each. The
result is the goodput per second of server CPU, relative to the same value at the peak, so that
other load on the machine does not matter. Health is checked meanwhile.
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
        """The program's results, and the CPU time that the server used."""
        before = server.cpu_s()
        command = ["taskset", "-c", "1", self.program, f"--port={server.port}",
                   f"--path=/sluice.v1.RateLimiter/{self.path}", f"--body={self.body}"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        results = json.loads(out.stdout)
        results["cpu_s"] = server.cpu_s() - before
        return results


def latency(options, folder):
    load = Load(options, folder, "Acquire", loads.unary(0))
    server = loads.Server(options.build, folder, False)
    try:
        measure_latency(options, load, server)
    finally:
        server.stop()


def measure_latency(options, load, server):
    time.sleep(0.2)
    load.run(server, seconds=0.3)
    capacity = load.run(server, seconds=1)["ok_per_s"]
    print(f"capacity, 8 connections x 32: {capacity:.0f}/s")
    rate = int(capacity / 2)
    results = [load.run(server, rate=rate, in_flight=1000, seconds=options.seconds)
               for _ in range(options.rounds)]
    print(f"  {rate}/s (half)" + "".join(
        f"  {name} {statistics.median(r[key] for r in results):.0f} us"
        for name, key in (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us"))), flush=True)


def overload(options, folder, path, body):
    load = Load(options, folder, path, body)
    server = loads.Server(options.build, folder, False)
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
                        in_flight=1024, probe_ms=10)
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
