#!/usr/bin/env python3
"""Drives `./dev cluster`: exact sums through HAProxy, a node drained, a node killed, all stopped.

usage: cluster_test.py SOURCE_DIR BUILD_DIR [TEST ...]
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
LIMITS = """
limits:
  - { name: shared, rate: 100/240h }
  - { name: wide, rate: 1000000/s }
"""
WAIT_S = 30


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return False


def await_true(what, question):
    deadline = time.monotonic() + WAIT_S
    while not question():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S} s for: {what}")
        time.sleep(0.02)


class Cluster:
    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-cluster-test-")
        limits = os.path.join(self.folder.name, "limits.yaml")
        with open(limits, "w") as file:
            file.write(LIMITS)
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen(
            ["python3", os.path.join(SOURCE, "deploy", "cluster.py"), f"--build={BUILD}",
             # Generous, since a busy machine is slow.
             f"--limits={limits}", *arguments, "--", "--redis_budget=5s"],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.wait(WAIT_S)
            said = self.said()
            self.close()
            raise AssertionError(f"it said {line!r} and: {said}")
        fields = dict(field.split("=", 1) for field in line.split()[1:])
        self.data = fields["data"]
        with open(fields["state"]) as file:
            self.state = json.load(file)
        self.processes = self.state["processes"]

    def said(self):
        with open(self.log.name) as file:
            return file.read()

    def command(self, *arguments):
        return [os.path.join(BUILD, "bin", "sluice"), f"--server={self.data}", "--output=json",
                "--deadline=20s", *arguments]

    def batch(self, text, calls_of):
        """Starts a client; decisions() waits for it."""
        process = subprocess.Popen(self.command("batch", f"--batch={calls_of}"),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        process.stdin.write(text)
        process.stdin.close()
        return process

    def load(self, seconds):
        return subprocess.Popen(
            self.command("bench", "wide", "--mode=unary", "--connections=2", "--keys=20",
                         "--concurrency=1000", "--rate=1000/s", f"--duration={seconds}s"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def granted(self, node):
        out = subprocess.run([os.path.join(BUILD, "bin", "sluice"), "--output=json",
                              f"--admin={self.processes[node]['admin']}", "stats"],
                             stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=True).stdout
        return json.loads(out)["granted"]

    def signal(self, node, number):
        os.kill(self.processes[node]["pid"], number)

    def await_end(self, node):
        await_true(f"the end of {node}", lambda: not alive(self.processes[node]["pid"]))

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
        return code


def decisions(process):
    text = process.stdout.read()
    process.stdout.close()
    process.wait(WAIT_S)
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["decision"]["granted"] if "decision" in line else line for line in lines]


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.cluster = None

    def start(self, *arguments):
        self.cluster = Cluster("--port=0", *arguments)
        self.addCleanup(self.cluster.close)
        return self.cluster

    def shares_exactly(self, key, clients=6):
        """Concurrent clients, whose calls alternate between nodes, get 100 of 240 acquisitions."""
        began = [self.cluster.batch(f"shared {key}\n" * 40, 5) for _ in range(clients)]
        results = [result for process in began for result in decisions(process)]
        self.assertEqual(len(results), 40 * clients)
        self.assertEqual((results.count(True), results.count(False)), (100, 40 * clients - 100),
                         [one for one in results if one not in (True, False)][:3])

    def test_grants_one_quota_while_nodes_are_drained_and_killed(self):
        cluster = self.start()
        self.shares_exactly("one")
        for node in ("node1", "node2", "node3"):
            self.assertGreater(cluster.granted(node), 0, node)

        # Drained under load: no call fails.
        before = cluster.granted("node1")
        load = cluster.load(3)
        await_true("load on node1", lambda: cluster.granted("node1") > before + 50)
        cluster.signal("node1", signal.SIGTERM)
        cluster.await_end("node1")
        output, errors = load.communicate(timeout=WAIT_S)
        self.assertEqual(load.returncode, 0, errors)
        report = json.loads(output)
        self.assertEqual((report["errors"], report["unavailable"]), (0, 0), report["first_error"])
        self.assertGreater(report["granted"], 1000)

        # Killed under load: calls on their way to it are lost, later calls succeed.
        before = cluster.granted("node2")
        load = cluster.load(2)
        await_true("load on node2", lambda: cluster.granted("node2") > before + 50)
        cluster.signal("node2", signal.SIGKILL)
        cluster.await_end("node2")
        before = cluster.granted("node3")
        await_true("calls that go on", lambda: cluster.granted("node3") > before + 100)
        output, errors = load.communicate(timeout=WAIT_S)
        report = json.loads(output)
        # The proxy and gRPC give a lost call one of several codes.
        self.assertLess(report["unavailable"] + report["errors"], report["granted"])
        self.shares_exactly("two")
        await_true("a word about node2", lambda: "node2 was ended by SIGKILL" in cluster.said())
        self.assertIn("node1 ended with 0", cluster.said())

        self.assertEqual(cluster.close(), 0)
        left = [name for name, one in cluster.processes.items() if alive(one["pid"])]
        self.assertEqual(left, [])
        self.assertFalse(os.path.exists(cluster.state["folder"]))

    def test_leaves_no_process_when_it_is_killed(self):
        cluster = self.start("--nodes=1")
        cluster.process.kill()
        for name, one in cluster.processes.items():
            await_true(f"the end of {name}", lambda: not alive(one["pid"]))
        subprocess.run(["rm", "-r", cluster.state["folder"]], check=True)

    def test_ends_when_no_node_can_answer(self):
        cluster = self.start("--nodes=1")
        cluster.signal("node1", signal.SIGKILL)
        self.assertEqual(cluster.process.wait(WAIT_S), 1)
        self.assertIn("no node can answer", cluster.said())

    def test_reports_a_port_in_use(self):
        cluster = self.start("--nodes=1")
        port = cluster.data.rsplit(":", 1)[1]
        with self.assertRaisesRegex(AssertionError, f"127.0.0.1:{port}: Address already in use; "
                                    "another --port=N"):
            Cluster(f"--port={port}", "--nodes=1").close()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
