#!/usr/bin/env python3
"""Random configurations and requests for servers of Envoy's rate-limit protocol, side by side.

Each server gets the same request at the same moment, and its answer is compared, field by field,
with that of the reference (reference.py). The programs read the environment of
envoyproxy/ratelimit, among it one runtime folder, whose configuration changes by a rename. `er` is
the name of that program itself: it gets a redis-server, and the reference knows its own faults.

No request is sent shortly before a second ends. If a call runs past the end of a second all the
same, the second in which it was counted is unknown: the round is repeated with other counters.

usage: differential.py NAME=PROGRAM... [--configurations N] [--requests N] [--variant NAME...]
"""
import argparse
import collections
import json
import os
import random
import shlex
import sys
import tempfile
import time

import yaml

import limiter
import random_streams
import reference

HERE = os.path.dirname(os.path.abspath(__file__))
GUARD_S = 0.006
ORIGINAL = "er"
# The reference's rules, and the variables that set them.
VARIANTS = {
    "plain": ({}, {}),
    "shown": ({"headers": True, "metadata": True},
              {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true"}),
    "spare": ({"spare_siblings": True}, {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"}),
    "shadow": ({"shadow_all": True, "headers": True},
               {"SHADOW_MODE": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true"}),
    "quota": ({"quota_all": True, "headers": True},
              {"QUOTA_MODE": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true"}),
}


class Crossed(Exception):
    """A call ran past the end of a second."""


class Configurations(limiter.Runtime):
    """Publishes configurations, and waits until a server has the last one."""

    def publish(self, files):
        """Adds a domain that shows when the configuration is in force."""
        marker = {"domain": "marker", "descriptors": [
            {"key": f"m{self.count + 1}",
             "rate_limit": {"unit": "year", "requests_per_unit": 2**32 - 1}}]}
        super().publish([*files, marker])

    def wait(self, server, seconds=20):
        """Waits until the server has the last published configuration."""
        request = {"domain": "marker", "descriptors": [{"entries": [{"key": f"m{self.count}"}]}]}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = server.ask(request)
            if answer.get("statuses") and answer["statuses"][0]["limit"]:
                return
            time.sleep(0.01)
        raise SystemExit(f"{server.name} did not load configuration {self.count}: {answer}")


def before_edge(moment):
    return 1 - moment % 1


def pause(chooser, guard_s):
    """Mostly none; sometimes up to the moment just after, or just before, the end of a second."""
    draw = chooser.random()
    if draw < 0.010:
        time.sleep(before_edge(time.time()))
    elif draw < 0.017:
        time.sleep(max(0, before_edge(time.time()) - guard_s - 0.004))
    elif draw < 0.05:
        time.sleep(chooser.random() * 0.05)
    if before_edge(time.time()) < guard_s:
        time.sleep(before_edge(time.time()) + 0.0003)


def ask_all(clients, request):
    """The second of the decision, and each server's answer."""
    messages = [client.message(request) for client in clients]
    start = time.time()
    calls = [client.start(message) for client, message in zip(clients, messages)]
    answers = [client.finish(call) for client, call in zip(clients, calls)]
    if int(start) != int(time.time()):
        raise Crossed
    return int(start), answers


class Run:
    """The servers with one set of variables, and what was seen of them."""

    def __init__(self, options, connect, variant, folder):
        """`connect` makes a client of a name and a limiter.Limiter."""
        self.options, self.variant = options, variant
        self.rules, variables = VARIANTS[variant]
        self.runtime = Configurations(f"{folder}/runtime")
        self.runtime.publish([])
        self.clients, self.stops = [], []
        for one in options.servers:
            name, program = one.split("=", 1)
            os.makedirs(f"{folder}/{name}")
            redis = None
            if name == ORIGINAL or options.redis:
                redis = limiter.Redis(f"{folder}/{name}")
                self.stops.append(redis.stop)
            process = limiter.Limiter(shlex.split(program), f"{folder}/{name}", self.runtime, redis,
                                      **variables)
            self.stops.insert(0, process.stop)
            self.clients.append(connect(name, process))
        self.requests = self.descriptors = self.over = self.repeated = self.edges = 0
        self.reloads = 0
        self.guard_s = GUARD_S
        self.seen = collections.Counter()
        self.differences = []
        self.explained = 0

    def stop(self):
        for stop in self.stops:
            stop()

    def rules_of(self, name):
        return reference.Rules(**self.rules, original_faults=name == ORIGINAL)

    def configuration(self, seed):
        for attempt in range(20):
            if self.attempt(seed, attempt):
                return
            self.repeated += 1
        raise SystemExit(f"configuration {seed}: no attempt stayed within its seconds")

    def attempt(self, seed, attempt):
        grammar = random_streams.Grammar(seed, f"-{os.getpid()}-{attempt}")
        chooser = random.Random(f"{seed}-{attempt}")
        self.runtime.publish(grammar.files)
        for client in self.clients:
            self.runtime.wait(client)
        models = [reference.Reference(grammar.files, self.rules_of(c.name)) for c in self.clients]
        history, last = [], None
        for _ in range(self.options.requests):
            if chooser.random() < 0.01:
                self.reload(grammar, models)
            request = grammar.request()
            pause(chooser, self.guard_s)
            start = time.monotonic()
            try:
                now, answers = ask_all(self.clients, request)
            except Crossed:
                return False
            finally:
                # A busy machine needs a longer guard.
                took_s = time.monotonic() - start
                self.guard_s = min(0.5, max(GUARD_S, 2 * took_s, 0.97 * self.guard_s))
            self.edges += last is not None and now != last
            last = now
            history.append((now, request))
            expected = [model.answer(request, now) for model in models]
            self.compare(seed, grammar, history, expected, answers)
        return True

    def reload(self, grammar, models):
        grammar.retune()
        self.runtime.publish(grammar.files)
        for client, model in zip(self.clients, models):
            self.runtime.wait(client)
            model.reload(grammar.files)
        self.reloads += 1

    def compare(self, seed, grammar, history, expected, answers):
        self.requests += 1
        self.count(answers[0], history[-1][1])
        if any(one != expected[0] for one in expected[1:]):
            self.explained += 1
        for client, want, got in zip(self.clients, expected, answers):
            if "error" in want and "error" in got:
                if want["error"] == got["error"] and (
                        got["text"] is None or want["text"] in got["text"]):
                    continue
            if want != got:
                self.report(client.name, seed, grammar, history, want, got)

    def count(self, answer, request):
        for status in answer.get("statuses", []):
            self.descriptors += 1
            self.seen[status["code"] + (" of a limit" if status["limit"] else "")] += 1
        self.over += answer.get("overall") == "OVER_LIMIT"

    def report(self, name, seed, grammar, history, want, got):
        now, request = history[-1]
        self.differences.append(name)
        if len(self.differences) <= self.options.show:
            print(f"\nDIFFERENCE {name}, configuration {seed}, request {len(history)}, at {now}"
                  f"\n  request  {json.dumps(request, ensure_ascii=False)}"
                  f"\n  expected {json.dumps(want, ensure_ascii=False)}"
                  f"\n  answered {json.dumps(got, ensure_ascii=False)}", flush=True)
            if self.options.verbose:
                print(yaml.safe_dump(grammar.files, sort_keys=False, allow_unicode=True))
                for moment, before in history[:-1]:
                    print(f"  before   {moment} {json.dumps(before, ensure_ascii=False)}")

    def summary(self, configurations):
        each = collections.Counter(self.differences)
        print(f"{self.variant}: {configurations} configurations, {self.requests} requests with "
              f"{self.descriptors} descriptors, {self.over} denied, {self.edges} ends of a second "
              f"crossed, {self.reloads} reloads, {self.repeated} rounds repeated; {dict(self.seen)}")
        if self.explained:
            print(f"  the servers differ by design in {self.explained} answers (faults of {ORIGINAL})")
        for client in self.clients:
            print(f"  {client.name}: {each[client.name]} differences", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=PROGRAM")
    parser.add_argument("--redis", action="store_true", help="a redis-server for every server")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--configurations", type=int, default=40, help="of each variant")
    parser.add_argument("--requests", type=int, default=110, help="of each configuration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proto", default=os.path.join(HERE, "..", "..", "proto"))
    parser.add_argument("--json", action="store_true", help="ask /json; needs no package of PyPI")
    parser.add_argument("--show", type=int, default=5, help="print this many differences")
    parser.add_argument("--verbose", action="store_true", help="with configuration and history")
    options = parser.parse_args()
    if options.json:
        import json_client
        return differences(options, json_client.Client)
    import grpc_client
    messages = grpc_client.Messages(options.proto)
    return differences(options, lambda name, process: grpc_client.Client(
        name, f"127.0.0.1:{process.grpc_port}", messages))


def differences(options, connect):
    """Runs all variants. Returns whether there were differences."""
    failed = False
    for variant in options.variant or VARIANTS:
        with tempfile.TemporaryDirectory(prefix="sluice-rls-") as folder:
            run = Run(options, connect, variant, folder)
            try:
                for seed in range(options.seed, options.seed + options.configurations):
                    run.configuration(seed)
            finally:
                run.stop()
            run.summary(options.configurations)
            failed |= bool(run.differences)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
