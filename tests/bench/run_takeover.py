#!/usr/bin/env python3
"""The pause of a takeover (--takeover): the longest time between two answers.

    tests/bench/run_takeover.py [--build build] [--buckets 100000] [--rounds 5]

Starts sluiced with so many buckets in memory. Two callers ask over HTTP, each on one connection, as
fast as they are answered, and connect again when it is closed. In each round a new server takes
over. Prints for each round the longest time without an answer, and how long the new server took to
load the state; then the median. Exits with 1 if a call had an answer that is not 200.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BATCH = 4096
LIMITS = """\
limits:
  - { name: filled, rate: 1/d, burst: 10 }
  - { name: asked, rate: 1000000000/s }
"""


class Server:
    """A sluiced that takes over from the one before it, if there is one."""

    def __init__(self, options, folder, number):
        self.log = open(os.path.join(folder, f"log{number}"), "w+")
        command = [os.path.join(options.build, "bin", "sluiced"), f"--limits={folder}/limits.yaml",
                   "--listen=127.0.0.1:0", "--admin_listen=none", "--http_listen=127.0.0.1:0",
                   f"--takeover={folder}/takeover"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"sluiced printed {line!r}; its log ends: {self.text()[-2000:]}")
        self.http = dict(field.split("=", 1) for field in line.split()[1:])["http"]

    def text(self):
        with open(self.log.name) as log:
            return log.read()


class Caller(threading.Thread):
    """Asks until it is stopped."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.stop, self.wrong, self.lost = address, False, 0, 0
        self.longest = 0.0  # seconds between two answers; reset by others

    def run(self):
        connection, last = http.client.HTTPConnection(self.address), time.monotonic()
        while not self.stop:
            try:
                connection.request("GET", "/v1/check?limit=asked&key=k")
                answer = connection.getresponse()
                answer.read()
            except (ConnectionError, http.client.HTTPException):
                self.lost += 1
                connection.close()  # the next request connects
                continue
            self.wrong += answer.status != 200
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now
        connection.close()


def fill(address, buckets):
    connection = http.client.HTTPConnection(address)
    for first in range(0, buckets, BATCH):
        body = json.dumps({"acquisitions": [
            {"charges": [{"limit": "filled", "key": f"user:{i}"}]}
            for i in range(first, min(buckets, first + BATCH))]})
        connection.request("POST", "/v1/acquireBatch", body,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:500]}")
    connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--buckets", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-takeover-") as folder:
        with open(f"{folder}/limits.yaml", "w") as file:
            file.write(LIMITS)
        servers = [Server(options, folder, 0)]
        try:
            fill(servers[0].http, options.buckets)
            callers = [Caller(servers[0].http) for _ in range(2)]
            for caller in callers:
                caller.start()
            pauses = []
            for number in range(1, options.rounds + 1):
                time.sleep(0.5)
                for caller in callers:
                    caller.longest = 0.0
                servers.append(Server(options, folder, number))
                servers[-2].process.wait(60)
                time.sleep(0.5)
                pauses.append(1000 * max(caller.longest for caller in callers))
                loaded = re.search(r"event=state_loaded buckets=(\d+) .*ms=(\d+)",
                                   servers[-1].text())
                print(f"round {number}: {pauses[-1]:6.1f} ms without an answer; {loaded[1]} buckets "
                      f"loaded in {loaded[2]} ms", flush=True)
            for caller in callers:
                caller.stop = True
            for caller in callers:
                caller.join(10)
            wrong = sum(caller.wrong for caller in callers)
            lost = sum(caller.lost for caller in callers)
            print(f"median: {statistics.median(pauses):.1f} ms; answers that are not 200: {wrong}; "
                  f"calls without an answer: {lost}")
            return 1 if wrong else 0
        finally:
            for server in servers:
                if server.process.poll() is None:
                    server.process.send_signal(signal.SIGINT)
                    server.process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
