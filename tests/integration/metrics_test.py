#!/usr/bin/env python3
"""Checks /metrics, the alerts and the dashboards with a real Prometheus.

A Prometheus scrapes two servers under load, one with its buckets in memory, one in a Redis that
stands still for a moment. Its sums equal GetStats; promtool has no remarks; each panel's query
returns data; the documents name each metric and each alert.

usage: metrics_test.py SOURCE_DIR BUILD_DIR [TEST ...]
Exits with 77 if prometheus or redis-server is not installed.
"""
import gzip
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
import unittest
import urllib.error
import urllib.parse
import urllib.request

MISSING = [name for name in ("prometheus", "promtool", "redis-server") if not shutil.which(name)]
if MISSING:
    print(f"SKIPPED: {', '.join(MISSING)} not installed; ./dev deps installs prometheus and redis")
    sys.exit(77)

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
SLUICED = os.path.join(BUILD, "bin", "sluiced")
SLUICE = os.path.join(BUILD, "bin", "sluice")
WAIT_S = 60
SCRAPE_MS = 250
LIMITS = """
limits:
  - { name: api, rate: 50/s, burst: 20, charges: [overall], on_store_failure: allow }
  - { name: overall, rate: 100000/s, on_store_failure: allow }
  - { name: trial, rate: 20/s, mode: shadow, on_store_failure: allow }
  - { name: "a/b:c@d.e", algorithm: sliding_log, rate: 5/m }
  - { name: unused, algorithm: fixed_window, rate: 20/day }
"""


def read(path):
    with open(os.path.join(SOURCE, path)) as file:
        return file.read()


def await_true(what, question):
    deadline = time.monotonic() + WAIT_S
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S} s for: {what}")
        time.sleep(0.05)
    return answer


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def fetch(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return answer.read(), answer.headers


def stop(process):
    if process.poll() is None:
        process.kill()
    process.wait(WAIT_S)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


class Node:
    """A sluiced with --metrics_listen."""

    def __init__(self, folder, name, *flags):
        self.limits = os.path.join(folder, f"{name}.yaml")
        with open(self.limits, "w") as file:
            file.write(LIMITS)
        with open(os.path.join(folder, f"{name}.log"), "w") as log:
            self.process = subprocess.Popen(
                [SLUICED, f"--limits={self.limits}", "--listen=127.0.0.1:0",
                 "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
                 "--metrics_listen=127.0.0.1:0", *flags],
                stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        self.address = dict(word.split("=", 1) for word in line.split()[1:])
        if "metrics" not in self.address:
            raise AssertionError(f"no metrics= in the ready line {line!r}")
        self.metrics = f"http://{self.address['metrics']}/metrics"

    def sluice(self, *arguments):
        return [SLUICE, f"--server={self.address['data']}", f"--admin={self.address['admin']}",
                *arguments]

    def load(self, limit, *, mode="unary", rate="300/s", duration="3s"):
        return subprocess.Popen(
            self.sluice("bench", limit, f"--mode={mode}", f"--rate={rate}", f"--duration={duration}",
                        "--keys=3"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stats(self):
        done = subprocess.run(self.sluice("stats", "--output", "json"), stdout=subprocess.PIPE,
                              check=True, timeout=WAIT_S)
        return json.loads(done.stdout)


class Prometheus:
    def __init__(self, folder, nodes):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as file:
            file.write(f"""
global: {{ scrape_interval: {SCRAPE_MS}ms, scrape_timeout: {SCRAPE_MS}ms, evaluation_interval: 1s }}
rule_files: ["{SOURCE}/deploy/prometheus/alerts.yml"]
scrape_configs:
  - job_name: sluice
    static_configs: [targets: {json.dumps([node.address["metrics"] for node in nodes])}]
""")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/api/v1/"
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL)
        await_true("Prometheus", self.ready)

    def ready(self):
        try:
            return fetch(self.url.replace("/api/v1/", "/-/ready"))
        except (urllib.error.URLError, ConnectionError):
            return None

    def get(self, path, **parameters):
        try:
            body, _ = fetch(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        return json.loads(body)["data"]

    def query(self, query, at=None):
        """[(labels, value)]"""
        at = {} if at is None else {"time": at}
        return [(one["metric"], float(one["value"][1]))
                for one in self.get("query", query=query, **at)["result"]]


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.processes = []
        cls.addClassCleanup(lambda: [stop(one) for one in reversed(cls.processes)])
        folder = tempfile.TemporaryDirectory(prefix="sluice-metrics-test-")
        cls.addClassCleanup(folder.cleanup)
        redis_socket = os.path.join(folder.name, "redis.sock")
        redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", redis_socket,
                                  "--dir", folder.name, "--save", ""], stdout=subprocess.DEVNULL)
        cls.processes.append(redis)
        await_true("redis-server", lambda: os.path.exists(redis_socket))
        cls.memory = Node(folder.name, "memory")
        cls.processes.append(cls.memory.process)
        cls.redis = Node(folder.name, "redis", f"--store=unix://{redis_socket}")
        cls.processes.append(cls.redis.process)
        cls.nodes = (cls.memory, cls.redis)
        cls.prometheus = Prometheus(folder.name, cls.nodes)
        cls.processes.append(cls.prometheus.process)
        cls.run_load(redis)

    @classmethod
    def run_load(cls, redis):
        """Loads both nodes; under_load and after are moments of Prometheus."""
        # Two scrapes before the load, so that rates begin at 0.
        await_true("first scrapes", lambda: len(cls.prometheus.query(
            'count_over_time(up{job="sluice"}[1m]) > 2')) == 2)
        loads = [node.load(*load, mode=mode) for node in cls.nodes
                 for *load, mode in (("api", "unary"), ("trial", "batch"), ("overall", "stream"))]
        time.sleep(1)
        redis.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        redis.send_signal(signal.SIGCONT)
        time.sleep(1)
        cls.under_load = time.time()
        for load in loads:
            # Calls may fail while Redis stands still.
            assert load.wait(WAIT_S) != 2, f"bad usage: {load.args}"
        # Refunds and streams end a little after their callers.
        time.sleep(0.3)
        cls.after = time.time()
        await_true("the scrapes after the load", lambda: all(
            value > cls.after + 0.1 for _, value in
            cls.prometheus.query('timestamp(up{job="sluice"} == 1)')))

    def labels(self, node, **more):
        more = {"instance": node.address["metrics"], **more}
        return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in more.items()) + "}"

    def value(self, metric, node, **labels):
        found = self.prometheus.query(metric + self.labels(node, **labels))
        self.assertLessEqual(len(found), 1, (metric, found))
        return found[0][1] if found else 0

    def test_sums_equal_get_stats(self):
        for node in self.nodes:
            with self.subTest(node.address["metrics"]):
                stats = node.stats()
                self.check_decisions(node, stats)
                self.check_methods(node, stats)
                self.check_store(node, stats["store"])

    def check_decisions(self, node, stats):
        for outcome in ("granted", "denied"):
            got = self.value("sluice_acquisitions_total", node, outcome=outcome)
            self.assertEqual(got, int(stats[outcome]), outcome)
            got = self.prometheus.query(
                "sum(sluice_limit_charges_total" + self.labels(node, outcome=outcome) + ")")
            self.assertEqual(got[0][1], sum(int(one.get(outcome, 0)) for one in stats["limits"]))
        self.assertGreater(int(stats["granted"]), 500)
        self.assertGreater(int(stats["denied"]), 100)
        self.assertGreater(sum(int(one.get("shadow_denied", 0)) for one in stats["limits"]), 100)
        for limit in stats["limits"]:
            name = limit["limit"]
            for metric, field, labels in (
                    ("charges_total", "granted", {"outcome": "granted"}),
                    ("charges_total", "denied", {"outcome": "denied"}),
                    ("permits_granted_total", "permits_granted", {}),
                    ("shadow_denied_total", "shadow_denied", {}),
                    ("permits_refunded_total", "refunded_permits", {}),
                    ("unavailable_charges_total", "allowed_while_unavailable",
                     {"outcome": "allowed"}),
                    ("unavailable_charges_total", "denied_while_unavailable",
                     {"outcome": "denied"})):
                got = self.value(f"sluice_limit_{metric}", node, limit=name, **labels)
                self.assertEqual(got, int(limit.get(field, 0)), (name, field))

    def check_methods(self, node, stats):
        checked = 0
        for method in stats["methods"]:
            name = method["method"]
            if "RateLimiter" not in name:
                continue  # reading the stats calls the others
            codes = {labels["code"]: value for labels, value in
                     self.prometheus.query("sluice_calls_total" + self.labels(node, method=name))}
            self.assertEqual(sum(codes.values()), sum(map(int, method.get("codes", {}).values())))
            for metric, field in (("sluice_call_duration_seconds_count", "count"),
                                  ("sluice_call_duration_seconds_sum", "sum_ns")):
                want = int(method.get("latency", {}).get(field, 0))
                got = self.value(metric, node, method=name)
                self.assertAlmostEqual(got, want * (1e-9 if field == "sum_ns" else 1), places=6)
            self.assertEqual(self.value("sluice_call_received_bytes_total", node, method=name),
                             int(method.get("bytes_received", 0)))
            checked += sum(codes.values()) > 0
        self.assertGreaterEqual(checked, 2)

    def check_store(self, node, store):
        if node is self.memory:
            for field in ("buckets", "max_buckets"):
                self.assertEqual(self.value(f"sluice_store_{field}", node), int(store[field]))
            return
        self.assertEqual(self.value("sluice_store_decisions_total", node), int(store["decisions"]))
        self.assertGreater(self.value("sluice_store_outages_total", node), 0)
        self.assertGreater(
            self.value("sluice_store_unavailable_charges_total", node, outcome="allowed"), 0)

    def test_promtool_has_no_remarks(self):
        for node in self.nodes:
            text, _ = fetch(node.metrics)
            done = subprocess.run(["promtool", "check", "metrics"], input=text,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S)
            self.assertEqual((done.returncode, done.stdout.decode()), (0, ""))

    def test_compresses_for_clients_that_take_gzip(self):
        plain, headers = fetch(self.memory.metrics)
        self.assertIsNone(headers["content-encoding"])
        self.assertEqual(headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        packed, headers = fetch(self.memory.metrics, **{"Accept-Encoding": "gzip"})
        self.assertEqual(headers["content-encoding"], "gzip")
        names = [re.findall(rb"^# TYPE .*$", text, re.MULTILINE)
                 for text in (plain, gzip.decompress(packed))]
        self.assertEqual(*names)

    def test_metrics_port_serves_nothing_else(self):
        base = f"http://{self.memory.address['metrics']}"
        self.assertEqual(fetch(f"{base}/healthz")[0], b"ok\n")
        self.assertEqual(fetch(f"{base}/readyz")[0], b"ok\n")
        for path in ("/", "/v1/check?limit=api", "/openapi.json"):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                fetch(base + path)
            self.assertEqual(raised.exception.code, 404, path)
            self.assertIn(b"this port serves /metrics, /healthz, /readyz", raised.exception.read())
            raised.exception.close()

    def test_is_not_ready_while_it_drains(self):
        with tempfile.TemporaryDirectory(prefix="sluice-metrics-test-") as folder:
            node = Node(folder, "drained", "--drain_notice=1h")
            self.addCleanup(stop, node.process)
            base = f"http://{node.address['metrics']}"
            node.process.send_signal(signal.SIGTERM)

            def refused():
                try:
                    return fetch(f"{base}/readyz") is None
                except urllib.error.HTTPError as error:
                    with error:
                        return error.code == 503
            await_true("503 of /readyz", refused)
            self.assertEqual(fetch(f"{base}/healthz")[0], b"ok\n")
            self.assertIn(b"sluice_build_info", fetch(f"{base}/metrics")[0])

    def test_http_port_serves_metrics_too(self):
        text, _ = fetch(f"http://{self.memory.address['http']}/metrics")
        self.assertIn(b"sluice_build_info", text)

    def test_documents_name_every_metric(self):
        text = read("docs/monitoring.md")
        for node in self.nodes:
            names = re.findall(r"^# TYPE (\S+)", fetch(node.metrics)[0].decode(), re.MULTILINE)
            self.assertGreater(len(names), 40)
            self.assertEqual([name for name in names if f"`{name}`" not in text], [])

    # ---- Alerts ----

    def test_alerts_fire_as_promtool_expects(self):
        done = subprocess.run(["promtool", "test", "rules", "deploy/prometheus/alerts_test.yml"],
                              cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        tests = read("deploy/prometheus/alerts_test.yml")
        for alert in self.alerts():
            self.assertIn(f"alertname: {alert['name']}", tests)

    def alerts(self):
        groups = self.prometheus.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def test_alerts_have_runbooks_and_run(self):
        self.assertGreater(len(self.alerts()), 10)
        headings = re.findall(r"^### (\S+)$", read("docs/monitoring.md"), re.MULTILINE)
        for alert in self.alerts():
            self.assertEqual(alert["annotations"]["runbook_url"],
                             f"docs/monitoring.md#{alert['name'].lower()}")
            self.assertIn(alert["name"], headings)
            self.assertIn(alert["health"], ("ok", "unknown"), alert)

    def test_prometheus_takes_the_deployed_configuration(self):
        done = subprocess.run(["promtool", "check", "config", "deploy/prometheus/prometheus.yml"],
                              cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)

    # ---- Dashboards ----

    def test_dashboards_are_those_of_their_script(self):
        subprocess.run([sys.executable, os.path.join(SOURCE, "deploy/grafana/dashboards.py"),
                        "--check"], check=True, timeout=WAIT_S)

    def test_queries_of_all_panels_return_data(self):
        values = {"$__rate_interval": "2s", "$job": "sluice", "$instance": ".*", "$limit": "trial"}
        queries = 0
        for name in ("operator", "limit"):
            dashboard = json.loads(read(f"deploy/grafana/{name}.json"))
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    query = target["expr"]
                    for variable, value in values.items():
                        query = query.replace(variable, value)
                    self.assertNotIn("$", query)
                    found = self.prometheus.query(query, at=self.under_load)
                    self.assertTrue(found, f"{name}, {panel['title']}: no data for {query}")
                    # A quantile of no calls is NaN.
                    self.assertTrue(any(value == value for _, value in found), panel["title"])
                    queries += 1
            self.check_variables(dashboard, values)
        self.assertGreater(queries, 30)

    def check_variables(self, dashboard, values):
        for variable in dashboard["templating"]["list"]:
            if variable["type"] != "query":
                continue
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            for name, value in values.items():
                metric = metric.replace(name, value)
            found = self.prometheus.query(metric)
            self.assertTrue(found and all(label in labels for labels, _ in found), variable["query"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
