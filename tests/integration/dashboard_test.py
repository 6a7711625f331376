#!/usr/bin/env python3
"""What the page at `/` loads and reads, from a real server: its files, the overview, the history.
tests/browser has the page itself.

usage: dashboard_test.py BIN_DIR
"""
import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BINARIES = ""
LIMITS = """limits:
  - { name: api, rate: 1/m, burst: 3 }
  - { name: idle, rate: 1/s }
  - { name: login, rate: 1/m, burst: 1, mode: shadow }
"""


class Events:
    """An open stream of server-sent events."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self.connection.request("GET", "/v1/overview")
        self.response = self.connection.getresponse()

    def next(self):
        """(name, data) of the next event."""
        name = data = None
        while True:
            line = self.response.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif not line and name is not None:
                return name, data
            elif not line and self.response.isclosed():
                return None, None

    def close(self):
        self.connection.close()


class DashboardTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.limits = os.path.join(self.folder.name, "limits.yaml")
        with open(self.limits, "w", encoding="utf-8") as file:
            file.write(LIMITS)
        self.server = subprocess.Popen(
            [os.path.join(BINARIES, "sluiced"), f"--limits={self.limits}", "--listen=127.0.0.1:0",
             "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = dict(word.split("=", 1) for word in self.server.stdout.readline().split()[1:])
        self.address = ready["http"]
        self.addCleanup(self.stop)

    def stop(self):
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)
        self.assertEqual(self.server.wait(timeout=30), 0)
        self.server.stdout.close()
        self.folder.cleanup()

    def get(self, path, method="GET", body=None, **headers):
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def acquire(self, limit, key, times=1):
        for _ in range(times):
            answer, _ = self.get("/v1/acquire", "POST", {"charges": [{"limit": limit, "key": key}]})
            self.assertEqual(answer.status, 200)

    def events(self):
        events = Events(self.address)
        self.addCleanup(events.close)
        return events

    # ---- Files

    def test_serves_all_files_of_the_page(self):
        answer, page = self.get("/")
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.getheader("Content-Type"), "text/html; charset=utf-8")
        seen, open_ones, total = set(), set(re.findall(r'"(/page/[^"]+)"', page.decode())), len(page)
        while open_ones:
            path = open_ones.pop()
            seen.add(path)
            answer, content = self.get(path)
            self.assertEqual(answer.status, 200, path)
            total += len(content)
            if path.endswith(".js"):
                imported = {f"/page/{name}" for name in re.findall(r"from '\./([\w.]+)'", content.decode())}
                open_ones |= imported - seen
        self.assertGreater(len(seen), 10)
        self.assertLessEqual(total, 300 * 1024)

    def test_policy_allows_only_the_servers_own_content(self):
        answer, page = self.get("/")
        policy = answer.getheader("Content-Security-Policy")
        self.assertTrue(policy.startswith("default-src 'none';"))
        self.assertNotIn("unsafe", policy)
        self.assertNotRegex(page.decode(), r"https?:|<style|<script>|style=|onclick")

    def test_files_are_compressed_and_not_sent_again(self):
        plain = self.get("/page/app.js")
        packed = self.get("/page/app.js", Accept_Encoding="gzip, br")
        self.assertEqual(packed[0].getheader("Content-Encoding"), "gzip")
        self.assertLess(len(packed[1]), len(plain[1]))
        self.assertEqual(gzip.decompress(packed[1]), plain[1])
        answer, content = self.get("/page/app.js", If_None_Match=plain[0].getheader("ETag"))
        self.assertEqual((answer.status, content), (304, b""))

    # ---- The overview

    def test_snapshot_comes_first_and_then_each_second(self):
        events = self.events()
        name, snapshot = events.next()
        self.assertEqual(name, "snapshot")
        self.assertEqual(events.response.getheader("Content-Type"), "text/event-stream")
        self.assertFalse(snapshot["changes"])
        self.assertEqual(snapshot["config"]["limits"], 3)
        self.assertEqual(snapshot["config"]["path"], self.limits)
        second = snapshot["second"]
        for _ in range(3):
            name, event = events.next()
            self.assertEqual(name, "second")
            self.assertGreater(event["second"], second)
            self.assertEqual(len(event["total"]), 8)
            second = event["second"]

    def test_counts_every_decision_once(self):
        events = self.events()
        self.assertEqual(events.next()[0], "snapshot")
        self.acquire("api", "one", 5)
        self.acquire("login", "two", 3)
        granted = denied = shadow = 0
        of_api = [0, 0, 0, 0]
        deadline = time.monotonic() + 20
        while granted + denied < 8 and time.monotonic() < deadline:
            _, event = events.next()
            granted += event["total"][0]
            denied += event["total"][1]
            shadow += event["total"][2]
            if "api" in event["limits"]:
                of_api = [a + b for a, b in zip(of_api, event["limits"]["api"][:4])]
        self.assertEqual((granted, denied, shadow), (6, 2, 2))
        self.assertEqual(of_api, [3, 2, 0, 0])
        self.assertEqual(event["limits"]["login"][4:], [3, 0, 2, 0])
        self.assertNotIn("idle", event["limits"])
        # A page that is opened now sees the same.
        _, late = self.events().next()
        self.assertEqual(sum(late["total"]["granted"]), 6)
        self.assertEqual(sum(late["total"]["denied"]), 2)
        api = next(one for one in late["limits"] if one["limit"] == "api")
        self.assertEqual((sum(api["granted"]), sum(api["denied"])), (3, 2))
        self.assertEqual(api["lastMinute"], [3, 2, 0, 0])
        deadline = time.monotonic() + 20
        keys = late["deniedKeys"]
        while not keys and time.monotonic() < deadline:
            keys = events.next()[1].get("deniedKeys")
        # Of equal ones, either may be first.
        self.assertIn({"limit": "api", "key": "one", "estimate": 2, "error": 0}, keys)

    def test_tells_a_refused_file_and_its_repair(self):
        events = self.events()
        events.next()
        events.next()  # has the configuration, since the server began to look
        for text, refused in ((LIMITS + "  - { name: bad, rate: 1/fortnight }\n", True), (LIMITS, False)):
            with open(self.limits + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(self.limits + ".new", self.limits)
            deadline = time.monotonic() + 20
            config = None
            while time.monotonic() < deadline:
                config = events.next()[1].get("config", config)
                if config is not None and ("lastError" in config) == refused:
                    break
            self.assertEqual("lastError" in config, refused)
            if refused:
                self.assertIn("fortnight", config["lastError"])

    def test_reader_that_does_not_read_costs_a_bounded_amount(self):
        host, port = self.address.rsplit(":", 1)
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect((host, int(port)))
        self.addCleanup(lazy.close)
        lazy.sendall(f"GET /v1/overview HTTP/1.1\r\nHost: {self.address}\r\n\r\n".encode())
        events = self.events()
        self.assertEqual(events.next()[0], "snapshot")
        for _ in range(3):
            self.assertEqual(events.next()[0], "second")

    def test_head_has_no_events(self):
        answer, content = self.get("/v1/overview", "HEAD")
        self.assertEqual((answer.status, content), (200, b""))

    def test_draining_ends_the_stream(self):
        events = self.events()
        self.assertEqual(events.next()[0], "snapshot")
        self.server.send_signal(signal.SIGINT)
        try:
            while events.next()[0] is not None:
                pass
        except (http.client.IncompleteRead, ConnectionError):
            self.fail("the stream was cut")
        self.assertEqual(self.server.wait(timeout=30), 0)

    # ---- The history

    def test_history_has_a_limit_by_second(self):
        self.acquire("api", "one", 5)
        deadline = time.monotonic() + 20
        history = {"granted": []}
        while sum(history["granted"]) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
            history = json.loads(self.get("/v1/history?limit=api")[1])
        self.assertEqual((sum(history["granted"]), sum(history["denied"])), (3, 2))
        self.assertEqual(len(history["granted"]), len(history["withoutStore"]))
        self.assertEqual(history["series"], "own")
        self.assertEqual((history["totals"]["granted"], history["totals"]["denied"]), (3, 2))
        idle = json.loads(self.get("/v1/history?limit=idle")[1])
        self.assertEqual(sum(idle["granted"]), 0)
        server = json.loads(self.get("/v1/history")[1])
        self.assertEqual((sum(server["granted"]), sum(server["denied"])), (3, 2))

    def test_history_of_an_unknown_limit_is_not_found(self):
        answer, content = self.get("/v1/history?limit=apy")
        self.assertEqual(answer.status, 404)
        problem = json.loads(content)
        self.assertIn('did you mean "api"?', problem["detail"])

    def test_another_sites_page_cannot_read_the_overview(self):
        self.assertEqual(self.get("/v1/overview", Origin="https://example.com")[0].status, 403)
        self.assertEqual(self.get("/v1/history", Host="example.com")[0].status, 403)


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main(verbosity=2)
