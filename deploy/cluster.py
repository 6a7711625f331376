#!/usr/bin/env python3
"""Starts nodes that share their quotas on this machine: a redis-server, sluiced processes that keep
their buckets in it, and HAProxy in front. The same as docker-compose.yml, as processes.

When all of them serve, prints one line on stdout, and nothing else there:
  ready data=HOST:PORT state=FILE
FILE is JSON: each process with its id, addresses and log. All files are in a temporary folder.
Ctrl-C (or SIGTERM) stops all and removes the folder. A process that ends earlier is reported.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
PR_SET_PDEATHSIG = 1


class Fault(Exception):
    """An error that the user can correct."""


def program(name, *places):
    for path in (shutil.which(name), *places):
        if path and os.access(path, os.X_OK):
            return path
    raise Fault(f"{name} is not installed; ./dev deps installs it")


def child_setup():
    """In the child: unblocks signals, and ends the child when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Cluster:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="sluice-cluster-")
        self.processes = {}  # name -> Popen, in the order of their start
        self.state = {"folder": self.folder, "processes": {}}
        self.reported = set()

    def start(self, name, command, stdout=None, **more):
        """Starts a process in its own session, so that only this script gets Ctrl-C."""
        log = os.path.join(self.folder, f"{name}.log")
        with open(log, "a") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout or file,
                                       stderr=file, start_new_session=True,
                                       preexec_fn=child_setup, text=True, **more)
        self.processes[name] = process
        self.state["processes"][name] = {"pid": process.pid, "log": log, "command": command}
        return process

    def failed(self, name):
        with open(os.path.join(self.folder, f"{name}.log")) as log:
            return Fault(f"{name} did not start; its log ends:\n{log.read()[-2000:]}")

    def start_redis(self):
        path = os.path.join(self.folder, "redis.sock")
        process = self.start("redis", [
            program("redis-server"), os.path.join(ROOT, "deploy", "redis.conf"), "--port", "0",
            "--unixsocket", path, "--dir", self.folder])
        deadline = time.monotonic() + 20
        while True:
            with socket.socket(socket.AF_UNIX) as one:
                try:
                    one.settimeout(1)
                    one.connect(path)
                    one.sendall(b"PING\r\n")
                    if one.recv(16).startswith(b"+PONG"):
                        break
                except OSError:
                    pass
            if process.poll() is not None or time.monotonic() > deadline:
                raise self.failed("redis")
            time.sleep(0.01)
        self.state["processes"]["redis"]["socket"] = path

    def start_node(self, number):
        name = f"node{number}"
        base = self.options.port + 10 * number if self.options.port else 0
        command = [os.path.join(self.options.build, "bin", "sluiced"),
                   f"--limits={self.options.limits}",
                   f"--store=unix://{self.folder}/redis.sock",
                   f"--listen=127.0.0.1:{base}",
                   f"--admin_listen=127.0.0.1:{base + 1 if base else 0}",
                   f"--http_listen=127.0.0.1:{base + 2 if base else 0}", *self.options.flags]
        process = self.start(name, command, stdout=subprocess.PIPE)
        ready = process.stdout.readline()
        if not ready.startswith("ready "):
            process.wait(20)
            raise self.failed(name)
        fields = dict(field.split("=", 1) for field in ready.split()[1:])
        self.state["processes"][name].update(
            data=fields["data"], admin=fields["admin"], http=fields["http"])

    def start_haproxy(self, listener):
        names = self.nodes()
        with open(os.path.join(ROOT, "deploy", "haproxy.cfg")) as file:
            config = file.read()
        env = {**os.environ, "SLUICE_BIND": f"fd@{listener.fileno()}"}
        for i, name in enumerate(names, 1):
            env[f"SLUICE_NODE{i}"] = self.state["processes"][name]["data"]
        # The file has three nodes; replace them by the requested number.
        config = re.sub(r"\n  server node\d .*", "", config).rstrip("\n") + "".join(
            f'\n  server {name} "${{SLUICE_NODE{i}}}"' for i, name in enumerate(names, 1)) + "\n"
        path = os.path.join(self.folder, "haproxy.cfg")
        with open(path, "w") as file:
            file.write(config)
        process = self.start(
            "haproxy", [program("haproxy", "/usr/sbin/haproxy"), "-db", "-f", path], env=env,
            pass_fds=[listener.fileno()])
        # The port listens already; wait until a node answers through it.
        deadline = time.monotonic() + 20
        address = self.state["data"]
        health = [os.path.join(self.options.build, "bin", "sluice"), f"--server={address}", "health"]
        while subprocess.run(health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             timeout=20).returncode != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise self.failed("haproxy")

    def start_all(self):
        # Bound here and inherited by HAProxy, which cannot be asked for a free port.
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self.options.port))
            listener.listen(1024)
        except OSError as fault:
            raise Fault(f"127.0.0.1:{self.options.port}: {fault.strerror}; another --port=N, or "
                        "--port=0 for free ones, may help")
        self.state["data"] = "127.0.0.1:%d" % listener.getsockname()[1]
        self.start_redis()
        for number in range(1, self.options.nodes + 1):
            self.start_node(number)
        self.start_haproxy(listener)
        listener.close()
        path = os.path.join(self.folder, "cluster.json")
        with open(path, "w") as file:
            json.dump(self.state, file, indent=1)
        self.explain()
        print(f"ready data={self.state['data']} state={path}", flush=True)

    def nodes(self):
        return [name for name in self.processes if name.startswith("node")]

    def explain(self):
        state = self.state["processes"]
        command = os.path.relpath(os.path.join(self.options.build, "bin", "sluice"))
        server = "" if self.options.port == 7200 else f" --server={self.state['data']}"
        first = self.nodes()[0]
        lines = [
            "", f"HAProxy on {self.state['data']}, in front of:"]
        for name in self.nodes():
            lines.append(f"  {name}   data {state[name]['data']}   admin {state[name]['admin']}"
                         f"   page http://{state[name]['http']}/   pid {state[name]['pid']}")
        lines += [
            "and their buckets in Redis:",
            f"  redis   redis-cli -s {state['redis']['socket']}   pid {state['redis']['pid']}",
            f"Logs are in {self.folder}. In another terminal, try:", "",
            f"  {command}{server} acquire daily me --permits 9000    # through one node",
            f"  {command}{server} acquire daily me --permits 9000    # the next node denies",
        ]
        for name in self.nodes():
            lines.append(f"  {command} --server={state[name]['data']} query daily me"
                         f"    # {name} says the same")
        lines += [
            f"  {command}{server} bench api --mode=unary --rate=500/s --duration=20s"
            "    # some load; meanwhile:",
            f"  kill -TERM {state[first]['pid']}    # drain {first}: no call fails",
            f"  kill -STOP {state['redis']['pid']}    # Redis unavailable: answers say so at once;"
            f" kill -CONT {state['redis']['pid']} ends that",
            f"  {command} --admin={state[self.nodes()[-1]]['admin']} stats",
            "", "Ctrl-C stops all of it.", "",
        ]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def report_ends(self):
        """Reports processes that have ended. Returns whether calls can still be answered."""
        for name, process in self.processes.items():
            if process.poll() is None or name in self.reported:
                continue
            self.reported.add(name)
            how = (f"was ended by {signal.Signals(-process.returncode).name}"
                   if process.returncode < 0 else f"ended with {process.returncode}")
            print(f"{name} {how}", file=sys.stderr, flush=True)
        running = [name for name in self.nodes() if self.processes[name].poll() is None]
        return bool(running) and self.processes["haproxy"].poll() is None

    def stop(self):
        # HAProxy first, so that calls stop. Redis last: nodes use it until they have ended.
        def last(name):
            return (name == "redis", name != "haproxy")
        for rank in sorted({last(name) for name in self.processes}):
            group = [self.processes[name] for name in self.processes if last(name) == rank]
            for process in group:
                if process.poll() is None:
                    # Nodes: SIGINT drains without the notice to balancers.
                    process.send_signal(signal.SIGINT if rank == (False, True) else signal.SIGTERM)
                    process.send_signal(signal.SIGCONT)
            for process in group:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if self.options.keep:
            print(f"Logs are left in {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def parse():
    parser = argparse.ArgumentParser(
        prog="./dev cluster", description=__doc__.split("\n\n")[0],
        epilog="Flags after -- go to each sluiced: ./dev cluster -- --redis_budget=50ms")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="sluiced processes (3)")
    parser.add_argument("--port", type=int, default=7200, metavar="PORT",
                        help="port of HAProxy; node I has PORT + 10 * I for data and the next for "
                        "admin; 0: free ones (7200)")
    parser.add_argument("--limits", default=os.path.join(ROOT, "deploy", "limits.example.yaml"),
                        metavar="FILE", help="limits (deploy/limits.example.yaml)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), metavar="DIR",
                        help="where bin/sluiced is (build)")
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.nodes <= 64:
        parser.error(f"--nodes={options.nodes}: write 1 to 64")
    if not 0 <= options.port <= 65535 - 10 * options.nodes - 1:
        parser.error(f"--port={options.port}: write 0, or a port with {10 * options.nodes + 1} "
                     "above it")
    options.limits = os.path.abspath(options.limits)
    options.build = os.path.abspath(options.build)
    return options


def main():
    options = parse()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    cluster = Cluster(options)
    code = 0
    try:
        cluster.start_all()
        while True:
            if not cluster.report_ends():
                print("no node can answer any more", file=sys.stderr)
                code = 1
                break
            if signal.sigwait(SIGNALS) != signal.SIGCHLD:
                break
    except Fault as fault:
        print(f"cluster: {fault}", file=sys.stderr)
        code = 1
    finally:
        cluster.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
