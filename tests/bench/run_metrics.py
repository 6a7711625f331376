#!/usr/bin/env python3
"""Measures what scrapes of /metrics cost, and whether decisions wait for them.

    tests/bench/run_metrics.py [--build build] [--limits 10000] [--rounds 5] [--seconds 4]

CPU time is that of the server's threads, from /proc. Latency is of 2000 acquisitions a second, in
turn without scrapes and with one scrape after another; of each the median over the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import urllib.request


class Server:
    def __init__(self, build, folder, limits):
        path = os.path.join(folder, "limits.yaml")
        with open(path, "w") as file:
            file.write("limits:\n")
            for i in range(limits):
                file.write(f'  - {{ name: "tenant-{i}/requests", rate: 10000/s }}\n')
        self.build = build
        self.process = subprocess.Popen(
            [f"{build}/bin/sluiced", f"--limits={path}", "--listen=127.0.0.1:0",
             "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        self.address = dict(word.split("=", 1) for word in line.split()[1:])

    def cpu_ms(self):
        """Of all threads, from the scheduler, which counts in nanoseconds."""
        total = 0
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e6

    def scrape(self, gzip=True):
        request = urllib.request.Request(f"http://{self.address['metrics']}/metrics",
                                         headers={"Accept-Encoding": "gzip"} if gzip else {})
        with urllib.request.urlopen(request) as answer:
            return len(answer.read())

    def latency_us(self, seconds):
        """{percentile: microseconds}"""
        done = subprocess.run(
            [f"{self.build}/bin/sluice", f"--server={self.address['data']}", "bench",
             "tenant-1/requests", "--mode=unary", "--rate=2000/s", f"--duration={seconds}s",
             "--connections=4", "--output", "json"], stdout=subprocess.PIPE)
        # On a busy machine calls may be shed, which makes the exit code 3.
        latency = json.loads(done.stdout)["latency"]
        return {name: latency[f"{name}_ns"] / 1000 for name in ("p50", "p99", "p999")}


def measure_cost(server, scrapes=20):
    for gzip in (False, True):
        before = server.cpu_ms()
        size = 0
        for _ in range(scrapes):
            size = server.scrape(gzip)
        print(f"{'compressed' if gzip else 'plain':10} {size:9} bytes, "
              f"{(server.cpu_ms() - before) / scrapes:5.1f} ms of CPU a scrape")


def measure_latency(server, rounds, seconds):
    found = {"without": [], "with": []}
    for _ in range(rounds):
        found["without"].append(server.latency_us(seconds))
        stop = threading.Event()

        def scrape():
            while not stop.is_set():
                server.scrape()
        scraping = threading.Thread(target=scrape)
        scraping.start()
        found["with"].append(server.latency_us(seconds))
        stop.set()
        scraping.join()
    for name, runs in found.items():
        shown = ", ".join(f"{percentile} {statistics.median(run[percentile] for run in runs):.0f}"
                          for percentile in ("p50", "p99", "p999"))
        print(f"{name + ' scrapes':16} {shown} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--limits", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-metrics-bench-") as folder:
        server = Server(options.build, folder, options.limits)
        try:
            server.scrape()  # allocates what later ones use again
            measure_cost(server)
            measure_latency(server, options.rounds, options.seconds)
        finally:
            server.process.kill()
            server.process.wait()


main()
