#!/usr/bin/env python3
"""Configures the real server by a management server of go-control-plane (tests/interop/xds).

usage: xds.py [--build DIR]
"""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import common

WAIT_S = 60


def config(domain, requests_per_unit, **policy):
    """A RateLimitConfig with one descriptor."""
    return {"name": domain, "domain": domain,
            "descriptors": [{"key": "path", "value": "/login",
                             "rateLimit": {"unit": "MINUTE", "requestsPerUnit": requests_per_unit,
                                           **policy}}]}


def build(work):
    common.need("go")
    folder = os.path.join(work, "xds")
    shutil.copytree(os.path.join(common.HERE, "xds"), folder, dirs_exist_ok=True)
    env = {"GOFLAGS": "-mod=mod"}
    common.run(["go", "mod", "tidy"], cwd=folder, env=env)
    common.run(["go", "build", "-o", "management", "."], cwd=folder, env=env)
    return os.path.join(folder, "management")


class Management:
    """The management server, and the events that it has told."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.address = self.next("listening")["listening"]

    def send(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def next(self, kind):
        """The next event with the member `kind`; skips others."""
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the management server ended")
            event = json.loads(line)
            if kind in event:
                return event

    def answer(self, version):
        """Serves nothing; waits for the request that has `version` in force or has an error."""
        while True:
            event = self.next("nonce")
            if event["nonce"] and (event["error"] or event["version"] == version):
                return event

    def stop(self):
        self.process.kill()
        self.process.wait()


class Sluice:
    def __init__(self, build, management, folder):
        self.log = open(os.path.join(folder, "sluiced.log"), "w+")
        self.process = subprocess.Popen(
            [os.path.join(build, "bin", "sluiced"), "--listen=127.0.0.1:0",
             "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", "--drain_notice=0s",
             "--ratelimit_debug_listen=127.0.0.1:0", f"--ratelimit_xds={management.address}",
             "--ratelimit_xds_node=test-node"],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.debug = None

    def await_ready(self):
        line = self.process.stdout.readline()
        ports = dict(field.split("=", 1) for field in line.split()[1:])
        self.debug = ports["ratelimit_debug"]

    def configuration(self):
        with urllib.request.urlopen(f"http://{self.debug}/rlconfig", timeout=WAIT_S) as answer:
            return sorted(line.split(",")[0] for line in answer.read().decode().splitlines())

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def line(domain, requests_per_unit):
    return f"{domain}.path_/login: unit=MINUTE requests_per_unit={requests_per_unit}"


def scenarios(management, sluice, check):
    """`check(name, got, wanted)`."""
    management.send(version="1", configs=[config("a", 10)])
    first = management.next("nonce")
    check("asks with its node and no version", (first["node"], first["version"]), ("test-node", ""))
    check("accepts the first configuration", management.answer("1")["error"], "")
    sluice.await_ready()
    check("has the first configuration", sluice.configuration(), [line("a", 10)])

    management.send(version="2", configs=[config("a", 20), config("b", 5)])
    check("accepts an update", management.answer("2")["error"], "")
    check("has two domains", sluice.configuration(), [line("a", 20), line("b", 5)])

    management.send(version="3", configs=[config("a", 30), config("b", 5, unit="UNKNOWN")])
    refused = management.answer("3")
    check("refuses a bad update", "xds:b" in refused["error"], True)
    check("names the version in force", refused["version"], "2")
    check("keeps the old configuration", sluice.configuration(), [line("a", 20), line("b", 5)])

    # Served again at once until it is replaced, so refusals of version 3 may come before.
    management.send(version="4", configs=[config("b", 6)])
    while (answer := management.answer("4"))["error"]:
        pass
    check("accepts the next update", answer["version"], "4")
    check("a removed domain is gone", sluice.configuration(), [line("b", 6)])

    management.send(drop=True)
    check("keeps the configuration when disconnected", sluice.configuration(), [line("b", 6)])
    management.send(version="5", configs=[config("c", 7)])
    check("connects again", management.answer("5")["error"], "")
    check("has what changed meanwhile", sluice.configuration(), [line("c", 7)])

    management.send(version="6", configs=[])
    check("accepts an empty configuration", management.answer("6")["error"], "")
    check("has no limits", sluice.configuration(), [])


def main():
    work = os.path.join(OPTIONS.build, "interop")
    os.makedirs(work, exist_ok=True)
    signal.alarm(3000)  # an event that never comes ends the run
    report = common.Report()
    program = OPTIONS.management or report.build("go-control-plane", lambda: build(work))
    if program is None:
        return 1 if report.failed else 0
    with tempfile.TemporaryDirectory(prefix="sluice-xds-") as folder:
        management = Management(program)
        sluice = Sluice(OPTIONS.build, management, folder)
        try:
            scenarios(management, sluice, lambda name, got, wanted: report.add(
                name, got == wanted, "" if got == wanted else f"{got!r}, not {wanted!r}"))
        finally:
            sluice.stop()
            management.stop()
    return report.end()


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default="build")
parser.add_argument("--management", help="the built program of tests/interop/xds")
OPTIONS = parser.parse_args()
if __name__ == "__main__":
    sys.exit(main())
