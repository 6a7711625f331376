"""Attacks on Envoy's rate-limit service: long and many descriptors, invented values and windows."""
import atexit
import functools
import json
import os
import random
import socket
import tempfile
import threading
import time

import grpc

from http2 import GZIP, connect, message
from run import acquire, attack
from server import rls_grpc, rls_pb

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
LONG = 60_000  # bytes of a value; a request has at most 512 KiB
LEVELS = 12

CONFIGURATION = """
domain: attack
descriptors:
  - key: any
    detailed_metric: true
    rate_limit: { unit: day, requests_per_unit: 1000 }
  - key: glob
    value: "*a*b*c*d*e"
    rate_limit: { unit: hour, requests_per_unit: 1000 }
  - key: honest
    rate_limit: { unit: year, requests_per_unit: 4000000000 }
""" + "".join(f"""  - key: agent
    value: "*bot{i}x*"
    rate_limit: {{ unit: hour, requests_per_unit: 1000 }}
""" for i in range(100)) + "".join(f"{'    ' * level}  - key: level{level}\n"
              f"{'    ' * level}    value: \"v*w\"\n" +
              (f"{'    ' * level}    descriptors:\n" if level < LEVELS - 1 else
               f"{'    ' * level}    rate_limit: {{ unit: hour, requests_per_unit: 1000 }}\n")
              for level in range(LEVELS))


@functools.cache
def configuration():
    """The path of a file with it, which is removed at exit."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(CONFIGURATION)
    process = os.getpid()  # children of all_at_once use the file too
    atexit.register(lambda: os.getpid() == process and os.unlink(file.name))
    return file.name


def envoy(server):
    """An Envoy's calls, on a connection of their own."""
    return rls_grpc.RateLimitServiceStub(server.channel()).ShouldRateLimit


def flags():
    return (f"--ratelimit_config={configuration()}", "--ratelimit_http_listen=127.0.0.1:0",
            "--ratelimit_request_limits=on")


def request(*descriptors, window=None):
    """`descriptors`: lists of (key, value). `window`: days, of a limit in each descriptor."""
    made = rls_pb.RateLimitRequest(domain="attack")
    for entries in descriptors:
        descriptor = made.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
        if window:
            descriptor.limit.requests_per_unit = 1000
            descriptor.limit.unit = rls_pb.RateLimitResponse.RateLimit.DAY
            descriptor.limit.unit_multiplier.value = window
    return made


def honest_calls(run, server, what, count=20):
    """Calls of Envoy on a connection of their own. Each must be answered, and found OK."""
    stub = envoy(server)
    served = 0
    for i in range(count):
        try:
            answer = stub(request([("honest", f"{i}")]), timeout=5)
            served += answer.overall_code == rls_pb.RateLimitResponse.OK
        except grpc.RpcError:
            pass
    run.check(served == count, f"{served} of {count} calls of Envoy served beside {what}",
              f"{count} of {count}")


def largest_requests():
    """The requests that are the most work, as far as the bounds let them be."""
    wide = [[("any", f"{i}".rjust(480, "k"))] for i in range(1000)]
    deep = [[(f"level{i}", "v" + "x" * 100 + "w") for i in range(LEVELS)] for _ in range(340)]
    long = [[("any", chr(97 + i) * LONG)] for i in range(8)]
    globs = [[("glob", "abcd" * (LONG // 4))] for _ in range(8)]
    short_globs = [[("glob", "abcd" * 120)] for _ in range(1000)]
    agents = [[("agent", "bot" * (LONG // 3))] for _ in range(8)]
    short_agents = [[("agent", "bot" * 160)] for _ in range(1000)]
    unknown = [[("k" * 500, "v")] for _ in range(1000)]
    return [message(request(*one), compress=True)
            for one in (wide, deep, long, globs, short_globs, agents, short_agents, unknown)]


@attack()
def envoy_descriptors(run):
    """Envoy's protocol: a thousand descriptors, values of 60 KB, all levels and wildcards of the
    configuration, compressed, many in flight on many connections."""
    server = run.server(*flags())
    bodies = largest_requests()
    run.begin()
    attackers = [server.connect() for _ in range(run.n(50))]
    until = time.monotonic() + 6
    while time.monotonic() < until and any(not a.ended for a in attackers):
        for attacker in attackers:
            while len(attacker.calls) < 32 and not attacker.ended:
                if not attacker.call("ShouldRateLimit", random.choice(bodies), GZIP, seconds=0.2,
                                     service=SERVICE):
                    break
            attacker.read(0.002)
    run.note(f"{sum(a.opened for a in attackers)} calls")
    honest_calls(run, server, f"{len(attackers)} connections")
    run.sent(attackers)
    run.rss(64)
    for attacker in attackers:
        attacker.close()
    run.released("after they left")
    run.end()


@attack()
def envoy_invented_values(run):
    """Envoy's protocol: invented values of a descriptor with detailed_metric, each of which wants
    a bucket and counters of its own."""
    server = run.server("--memory_limit=128MiB", *flags())
    run.begin()
    attackers = [server.connect() for _ in range(4)]
    for first in range(0, run.n(200_000), 500):
        body = message(request(*[[("any", f"{first + i}".rjust(480, "k"))] for i in range(500)]))
        attacker = attackers[first // 500 % len(attackers)]
        attacker.call("ShouldRateLimit", body, seconds=1, service=SERVICE)
        attacker.read()
    for attacker in attackers:
        attacker.wait(10)
    run.sent(attackers)
    honest_calls(run, server, "invented values")
    run.rss(160)
    served = sum(acquire(run, server.stub(), ("api", f"new-{i}")).granted for i in range(20))
    run.check(served == 20, f"{served} of 20 new keys of another limit served", "20 of 20 served")
    run.end()


@attack()
def envoy_invented_windows(run):
    """Envoy's protocol: limits in requests, each with a window of another length."""
    server = run.server(*flags())
    stub = envoy(server)
    entries = [("honest", "window")]
    stub(request(entries, window=1), timeout=5)
    run.begin()
    attackers = [server.connect() for _ in range(run.n(10))]
    for i in range(2000):
        for n, attacker in enumerate(attackers):
            body = message(request(entries, window=2 + i * len(attackers) + n))
            attacker.call("ShouldRateLimit", body, seconds=0.2, service=SERVICE)
            attacker.read()
    for attacker in attackers:
        attacker.wait(5)
    run.sent(attackers)
    try:
        answer = stub(request(entries, window=1), timeout=5)
        goes_on = answer.overall_code == rls_pb.RateLimitResponse.OK
    except grpc.RpcError:
        goes_on = False
    run.check(goes_on, f"a window that was used before is {'served' if goes_on else 'refused'}",
              "it is served")
    honest_calls(run, server, "invented windows")
    run.rss(32)
    for attacker in attackers:
        attacker.close()
    run.released("after they left")
    run.end()


@attack()
def envoy_json(run):
    """Envoy's protocol over HTTP: /json with as many descriptors as a document holds, many at
    once, whose answers are not read, and deeply nested documents."""
    server = run.server(*flags())
    many = json.dumps({"domain": "attack", "descriptors": [
        {"entries": [{"key": "any", "value": f"{i}"}]} for i in range(1000)]}).encode()
    nested = b'{"domain":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    garbage = b'{"domain":"attack","descriptors":[' + b'{"entries":[{}]},' * 3000 + b"]}"
    requests = [b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body for body in (many, nested, garbage)]
    run.begin()
    until = time.monotonic() + 6

    def flood(number):
        while time.monotonic() < until:
            try:
                with connect(server.ratelimit_http) as one:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    one.settimeout(0.2)
                    for i in range(64):
                        one.sendall(requests[(number + i) % len(requests)])
            except OSError:  # the server reads no more, or closes
                pass

    threads = [threading.Thread(target=flood, args=(i,)) for i in range(run.n(20))]
    for thread in threads:
        thread.start()
    time.sleep(3)
    honest_calls(run, server, f"{len(threads)} floods")
    for thread in threads:
        thread.join()
    run.rss(64)
    run.released("after they left")
    run.end()
