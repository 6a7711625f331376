#!/usr/bin/env python3
"""Starts the program `ratelimit` with the environment of envoyproxy/ratelimit, and calls its ports.

usage: ratelimit_test.py BUILD_DIR
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BIN = os.path.join(os.path.abspath(sys.argv.pop(1)), "bin")
WAIT_S = 60
CONFIG = """
domain: shop
descriptors:
  - key: path
    value: /login
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: path
    rate_limit: { unlimited: true }
"""
# Ports are picked.
ENVIRONMENT = {"GRPC_HOST": "127.0.0.1", "GRPC_PORT": "0", "HOST": "127.0.0.1", "PORT": "0",
               "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0", "USE_STATSD": "false",
               "LOG_LEVEL": "info"}
FLAGS = ("--drain_notice=0s",)


def await_true(what, question):
    deadline = time.monotonic() + WAIT_S
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S} s for: {what}")
        time.sleep(0.02)
    return answer


class Ratelimit:
    """The program with a runtime folder of its own. Stop it with close."""

    def __init__(self, config=CONFIG, overrides=None, **variables):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-ratelimit-test-")
        os.makedirs(f"{self.folder.name}/runtime/ratelimit/config")
        if config is not None:
            self.write_config(config)
        environment = {"PATH": os.environ["PATH"], **ENVIRONMENT,
                       "RUNTIME_ROOT": f"{self.folder.name}/runtime",
                       "RUNTIME_SUBDIRECTORY": "ratelimit", **variables}
        self.log = open(f"{self.folder.name}/log", "w+")
        flags = list(FLAGS)
        if overrides is not None:
            with open(f"{self.folder.name}/overrides.yaml", "w") as file:
                file.write(overrides)
            flags.append(f"--ratelimit_overrides={file.name}")
        self.process = subprocess.Popen([os.path.join(BIN, "ratelimit"), *flags], env=environment,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        self.ports = dict(field.split("=", 1) for field in line.split()[1:])

    def write_config(self, text):
        path = f"{self.folder.name}/runtime/ratelimit/config/shop.yaml"
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)

    def said(self):
        with open(self.log.name) as file:
            return file.read()

    def get(self, port, path, body=None, headers={}):
        """Status and text."""
        request = urllib.request.Request(f"http://{self.ports[port]}{path}", data=body,
                                         headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ask(self, path, domain="shop", **fields):
        """Status and answer of /json. `fields`: more of the descriptor."""
        body = {"domain": domain,
                "descriptors": [{"entries": [{"key": "path", "value": path}], **fields}]}
        status, text = self.get("ratelimit_http", "/json", json.dumps(body).encode())
        return status, json.loads(text)

    def close(self):
        """Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
        return code


class RatelimitTest(unittest.TestCase):
    def start(self, **options):
        server = Ratelimit(**options)
        self.addCleanup(server.close)
        self.assertIn("ratelimit_http", server.ports, server.said())
        return server

    def refuse(self, **options):
        """What the program says that does not start."""
        server = Ratelimit(**options)
        try:
            self.assertEqual(server.ports, {})
            self.assertEqual(server.process.wait(WAIT_S), 2)
            return server.said()
        finally:
            server.close()

    def test_counts_and_answers_as_json(self):
        server = self.start()
        self.assertEqual([server.ask("/login")[0] for _ in range(3)], [200, 200, 429])
        status, answer = server.ask("/login")
        self.assertEqual((status, answer["overallCode"]), (429, "OVER_LIMIT"))
        limit = answer["statuses"][0]["currentLimit"]
        self.assertEqual((limit["requestsPerUnit"], limit["unit"]), (2, "DAY"))
        self.assertEqual(server.ask("/other")[0], 200)
        self.assertEqual(server.ask("/login", domain="")[0], 400)
        self.assertEqual(server.get("ratelimit_http", "/json", b"{")[0], 400)

    def test_pages_of_other_sites_charge_nothing(self):
        server = self.start()
        body = json.dumps({"domain": "shop",
                           "descriptors": [{"entries": [{"key": "path", "value": "/login"}]}]})
        here = server.ports["ratelimit_http"]

        def send(**headers):
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            return server.get("ratelimit_http", "/json", body.encode(), headers)[0]
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"},
                        {"Origin": f"http://{here}0"}, {"Sec_Fetch_Site": "cross-site"},
                        {"Sec_Fetch_Site": "same-site"}):
            self.assertEqual(send(Content_Type="text/plain", **headers), 403, headers)
        # As curl -d sends it, under any name; and a page of the same host.
        self.assertEqual(send(Host="ratelimit.shop.svc:8080",
                              Content_Type="application/x-www-form-urlencoded"), 200)
        self.assertEqual(send(Origin=f"http://{here}", Sec_Fetch_Site="same-origin"), 200)
        self.assertEqual(send(), 429)

    def test_healthcheck(self):
        self.assertEqual(self.start().get("ratelimit_http", "/healthcheck"), (200, "OK"))

    def test_health_may_depend_on_the_configuration(self):
        server = self.start(config=None, FORCE_START_WITHOUT_INITIAL_CONFIG="true",
                            HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED="true")
        self.assertEqual(server.get("ratelimit_http", "/healthcheck")[0], 500)
        server.write_config(CONFIG)
        await_true("health", lambda: server.get("ratelimit_http", "/healthcheck")[0] == 200)

    def test_debug_port_shows_configuration_and_counters(self):
        server = self.start()
        server.ask("/login")
        status, text = server.get("ratelimit_debug", "/rlconfig")
        self.assertEqual(status, 200)
        self.assertIn("shop.path_/login: unit=DAY requests_per_unit=2, shadow_mode: false", text)
        self.assertIn("shop.path: unlimited", text)
        status, text = server.get("ratelimit_debug", "/stats")
        self.assertEqual(status, 200)
        self.assertIn("ratelimit.service.rate_limit.shop.path_/login.total_hits: 1\n", text)
        self.assertIn("ratelimit.service.config_load_success: 1\n", text)

    def test_ports_serve_nothing_else(self):
        server = self.start()
        for port, path in (("ratelimit_http", "/rlconfig"), ("ratelimit_http", "/v1/acquire"),
                           ("ratelimit_debug", "/json"), ("ratelimit_debug", "/")):
            self.assertEqual(server.get(port, path)[0], 404, path)

    @unittest.skipIf(os.geteuid() != 0, "only root sees the descriptors of sluiced")
    def test_opens_only_the_ports_of_the_environment(self):
        server = self.start()
        self.assertEqual((server.ports["admin"], server.ports["http"]), ("none", "none"))
        self.assertEqual(set(server.ports), {"data", "admin", "http", "ratelimit_http", "ratelimit_debug"})
        held = f"/proc/{server.process.pid}/fd"
        sockets = {os.readlink(f"{held}/{one}") for one in os.listdir(held)}
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in list(table)[1:]]
        listening = {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
        self.assertEqual(len(listening), 3)

    def test_without_redis_a_call_fails_unless_the_overrides_allow_it(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            redis = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_TIMEOUT": "5ms",
                     "REDIS_URL": f"127.0.0.1:{probe.getsockname()[1]}"}
            self.assertEqual(self.start(**redis).ask("/login")[0], 400)
            server = self.start(overrides="domains: { shop: { on_store_failure: allow } }\n", **redis)
            for _ in range(3):
                status, answer = server.ask("/login")
                self.assertEqual((status, answer["overallCode"]), (200, "OK"))
            exact = self.start(overrides="domains: { shop: { mode: exact, on_store_failure: allow } }\n",
                               **redis)
            self.assertEqual([exact.ask("/login")[0] for _ in range(3)], [200, 200, 200])
            for one in (server, exact):
                self.assertEqual(one.ask("/login", hitsAddend="0")[0], 200)  # a check
                self.assertEqual(one.ask("/login", hitsAddend="3")[0], 429)  # never fits

    def test_prometheus_has_its_own_address(self):
        server = self.start(USE_PROMETHEUS="true", PROMETHEUS_ADDR="127.0.0.1:0")
        server.ask("/login")
        status, text = server.get("metrics", "/metrics")
        self.assertEqual(status, 200)
        self.assertIn("ratelimit_service_rate_limit_total_hits", text)

    def test_statsd_gets_plain_lines(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
            statsd.bind(("127.0.0.1", 0))
            statsd.settimeout(WAIT_S)
            server = self.start(USE_STATSD="true", STATSD_HOST="127.0.0.1",
                                STATSD_PORT=str(statsd.getsockname()[1]), STATS_FLUSH_INTERVAL="1s")
            server.ask("/login")
            wanted = b"ratelimit.service.rate_limit.shop.path_/login.total_hits:1|c"
            lines = []
            await_true(wanted.decode(),
                       lambda: lines.extend(statsd.recv(65536).split(b"\n")) or wanted in lines)

    def test_names_variables_without_effect(self):
        server = self.start(LOCAL_CACHE_SIZE_IN_BYTES="1000", GRPC_MAX_CONNECTION_AGE="30m")
        for name in ("LOCAL_CACHE_SIZE_IN_BYTES", "GRPC_MAX_CONNECTION_AGE"):
            self.assertIn(f"event=variable_without_effect name={name} reason=", server.said())

    def test_refuses_memcached_and_wrong_values(self):
        self.assertIn("BACKEND_TYPE=memcache: memcached is not supported",
                      self.refuse(BACKEND_TYPE="memcache"))
        said = self.refuse(PORT="http", REDIS_TYPE="one")
        self.assertIn("PORT=http: write a port", said)
        self.assertIn("REDIS_TYPE=one: write one of SINGLE, SENTINEL, CLUSTER", said)

    def test_bad_configuration_ends_the_start(self):
        self.assertIn("shop.yaml:", self.refuse(config="domain: shop\ndescriptors: [{ value: v }]\n"))

    def test_error_of_a_missing_file_names_the_flag(self):
        said = self.refuse(RUNTIME_SUBDIRECTORY="none")
        self.assertRegex(said, r"--ratelimit_config: \S*/none/config: No such file or directory")

    def test_xds_server_that_is_down_keeps_the_start_waiting_until_a_signal(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        process = subprocess.Popen(
            [os.path.join(BIN, "ratelimit"), *FLAGS], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
            env={**ENVIRONMENT, "CONFIG_TYPE": "GRPC_XDS_SOTW",
                 "CONFIG_GRPC_XDS_SERVER_URL": f"unix:{folder.name}/none"})
        self.addCleanup(process.stderr.close)
        while "event=xds_waiting" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_redis_with_password_that_the_process_list_does_not_show(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/redis.sock"
            redis = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", path, "--requirepass", "se cret&1",
                 "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
            try:
                await_true("redis-server", lambda: os.path.exists(path))
                server = self.start(REDIS_URL=path, REDIS_AUTH="se cret&1")
                with open(f"/proc/{server.process.pid}/cmdline") as file:
                    command = file.read()
                self.assertIn(f"--store=unix://{path}?password_file=", command)
                self.assertNotIn("cret", command)
                self.assertEqual([server.ask("/login")[0] for _ in range(3)], [200, 200, 429])
            finally:
                redis.kill()
                redis.wait(WAIT_S)


if __name__ == "__main__":
    unittest.main()
