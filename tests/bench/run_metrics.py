#!/usr/bin/env python3
"""Measures what scrapes of /metrics and open pages cost, and whether decisions wait for scrapes.

    tests/bench/run_metrics.py [--build build] [--limits 10000] [--rounds 6] [--seconds 5]
        [--only cost|waits|pages]

The server is pinned to one core, with one event loop; the load, the scrapes and the pages to
another, where the load goes first. CPU time is that of the server's threads, from /proc.

cost: of a scrape, one after the other.

waits: 2000 acquisitions a second, in turn without scrapes and with one scrape after another. A wait
counts from when the call was due. What the machine itself lets calls wait is in both; it differs
from minute to minute, so compare rounds that follow each other.

pages: 100 open pages and a scrape each second, with 100 limits under load.
"""
import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

# On the load's core, after the load itself.
AFTER_LOAD = ["taskset", "-c", "1", "chrt", "-i", "0"]
PAGES = 100


class Server:
    def __init__(self, build, folder, limits):
        path = os.path.join(folder, f"limits-{limits}.yaml")
        with open(path, "w") as file:
            file.write("limits:\n")
            for i in range(limits):
                file.write(f'  - {{ name: "tenant-{i}/requests", rate: 10000/s }}\n')
        self.build = build
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", f"{build}/bin/sluiced", f"--limits={path}", "--threads=1",
             "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        self.address = dict(word.split("=", 1) for word in line.split()[1:])
        self.url = f"http://{self.address['metrics']}/metrics"
        self.scrape()  # allocates what later ones use again

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def cpu_ms(self):
        """Of all threads, from the scheduler, which counts in nanoseconds."""
        total = 0
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e6

    def scrape(self, gzip=True):
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "gzip"} if gzip else {})
        with urllib.request.urlopen(request) as answer:
            return len(answer.read())

    def load(self, seconds):
        """Starts 2000 acquisitions a second. Its output has the latencies."""
        first = ["nice", "-n", "-20"] if os.geteuid() == 0 else []
        return subprocess.Popen(
            ["taskset", "-c", "1", *first, f"{self.build}/bin/sluice",
             f"--server={self.address['data']}", "bench", "tenant-1/requests", "--mode=unary",
             "--rate=2000/s", f"--duration={seconds}s", "--connections=4", "--output", "json"],
            stdout=subprocess.PIPE)

    def waits_us(self, seconds):
        """{percentile: microseconds}"""
        # On a busy machine calls may be shed, which makes the exit code 3.
        latency = json.loads(self.load(seconds).communicate()[0])["latency"]
        return {name: latency[f"{name}_ns"] / 1000 for name in ("p50", "p99", "p999", "max")}


@contextlib.contextmanager
def scrapes(server, pause):
    """While it lasts, scrapes with `pause` seconds in between. Yields a function: how many yet."""
    with tempfile.TemporaryFile("w+") as count:
        scraping = subprocess.Popen(
            [*AFTER_LOAD, "sh", "-c", 'while curl -sf --compressed -o /dev/null "$0"; do echo; '
             'sleep "$1"; done', server.url, str(pause)], stdout=count)
        try:
            yield lambda: os.fstat(count.fileno()).st_size
        finally:
            scraping.kill()
            scraping.wait()


def measure_cost(server, scrapes_made=20):
    for gzip in (False, True):
        before = server.cpu_ms()
        size = 0
        for _ in range(scrapes_made):
            size = server.scrape(gzip)
        print(f"{'compressed' if gzip else 'plain':10} {size:9} bytes, "
              f"{(server.cpu_ms() - before) / scrapes_made:5.1f} ms of CPU a scrape", flush=True)


def show_waits(name, waits, more=""):
    print(f"{name:16} " + ", ".join(f"{percentile} {us:.0f}" for percentile, us in waits.items())
          + f" us{more}", flush=True)


def measure_waits(server, rounds, seconds):
    found = {"without": [], "with": []}
    for _ in range(rounds):
        found["without"].append(server.waits_us(seconds))
        show_waits("without scrapes", found["without"][-1])
        with scrapes(server, pause=0) as made:
            found["with"].append(server.waits_us(seconds))
            show_waits("with scrapes", found["with"][-1], f", {made()} scrapes")
    for name, runs in found.items():
        for which, of in (("median", statistics.median), ("least", min)):
            show_waits(f"{which}, {name}", {percentile: of(run[percentile] for run in runs)
                                            for percentile in runs[0]})


class Pages:
    """Open pages. Each reads its stream."""

    def __init__(self, server):
        host, port = server.address["http"].rsplit(":", 1)
        request = f"GET /v1/overview HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        self.sockets = [socket.create_connection((host, int(port))) for _ in range(PAGES)]
        for one in self.sockets:
            one.sendall(request)

    def read(self):
        """Events that came since the last time."""
        events = 0
        for one in self.sockets:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while data := one.recv(1 << 20):
                    events += data.count(b"event: second")
        return events

    def close(self):
        for one in self.sockets:
            one.close()


def measure_pages(server, seconds):
    def cpu_share(each_second):
        load = server.load(seconds + 2)
        time.sleep(1)
        before, end = server.cpu_ms(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1)
            each_second()
        used = server.cpu_ms() - before
        load.communicate()
        return used / seconds / 10

    without = cpu_share(lambda: None)
    pages = Pages(server)
    time.sleep(1.5)
    pages.read()
    events = []
    with scrapes(server, pause=1):
        shares = cpu_share(lambda: events.append(pages.read()))
    pages.close()
    print(f"{PAGES} pages and a scrape each second: {shares - without:.2f} % of a core beside the "
          f"load's {without:.2f} %; {sum(events)} events were read of {PAGES * seconds}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--limits", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--only", default="", choices=["", "cost", "waits", "pages"])
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory(prefix="sluice-metrics-bench-") as folder:
        if options.only in ("", "cost", "waits"):
            with Server(options.build, folder, options.limits) as server:
                if options.only != "waits":
                    measure_cost(server)
                if options.only != "cost":
                    measure_waits(server, options.rounds, options.seconds)
        if options.only in ("", "pages"):
            with Server(options.build, folder, 100) as server:
                measure_pages(server, 2 * options.seconds)


main()
