#!/usr/bin/env python3
"""Tests the page at `/` in a real headless Chromium, against the real server.

  page_test.py --build build [CASE ...]

axe-core checks labels and contrast; without npm those cases are skipped, with a message.
"""
import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error

from programs import ROOT, TOKEN, Browser, Held, Redis, Server

BUILD = os.path.join(ROOT, "build")
AXE = "axe-core@4.10.3"

LIMITS = """limits:
  - { name: api, rate: 100/s, burst: 200, charges: [overall], keys: { "user:42": { rate: 1000/s, burst: 2000 } } }
  - { name: overall, rate: 5000/s }
  - { name: login, rate: 5/m, mode: shadow }
  - { name: render, rate: 1/s, burst: 0, debt: 10 }
  - { name: slow, rate: 1/m, burst: 20 }
"""
VIEWS = {"overview": "#/", "limit": "#/limit/api", "key": "#/key/api/bench%3A1", "nodes": "#/nodes",
         "change": "#/edit/api", "new": "#/new"}
HEADINGS = {"overview": "Overview", "limit": "api", "key": "bench:1", "nodes": "Nodes",
            "change": "Change api", "new": "New limit"}


class PageTest(unittest.TestCase):
    """Each case has its own server and browser."""
    limits = LIMITS

    def setUp(self):
        self.server = self.start_server()
        self.addCleanup(lambda: self.server.stop())
        self.browser = Browser()
        self.addCleanup(lambda: self.browser.close())

    def start_server(self):
        return Server(BUILD, self.limits)

    def load(self, limit, rate, **more):
        process = self.server.load(limit, rate, **more)

        def end():
            process.terminate()
            process.wait()
        self.addCleanup(end)

    def show(self, address, browser=None):
        (browser or self.browser).open(f"{self.server.url}/{address}")
        (browser or self.browser).wait_live()

    def confirm(self, verb):
        self.browser.type("#ask-token", TOKEN)
        self.browser.click(verb, "dialog button")


class ViewsTest(PageTest):
    def test_every_view_works_under_load_without_an_error_in_the_console(self):
        self.load("api", 3000, keys=10)
        for name, address in VIEWS.items():
            with self.subTest(view=name):
                self.show(address)
                self.browser.wait("the view is shown", lambda: self.browser.text("h1") == HEADINGS[name])
                time.sleep(2.5)
                self.assertEqual(self.browser.errors(), [])
                # Nothing comes from another host.
                names = self.browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
                self.assertEqual([one for one in names if not one.startswith(self.server.url)], [])

    def test_first_paint_and_size(self):
        self.show("#/")
        total = 0
        for path in ["/"] + re.findall(r'(?:href|src)="(/page/[^"]+)"', self.server.get("/")[2].decode()) + [
                f"/page/{name}.js" for name in ("api", "dialogs", "edit", "feed", "key", "limit", "model", "nodes", "problems")]:
            status, headers, body = self.server.get(path)
            self.assertEqual(status, 200, path)
            self.assertIn("default-src 'none'", headers.get("Content-Security-Policy", headers.get("content-security-policy", "")))
            total += len(body)
        self.assertLessEqual(total, 300 * 1024)
        paint = self.browser.run("return performance.getEntriesByType('paint').map((one) => one.startTime)")
        print(f"\nfirst paint {max(paint):.0f} ms; all files {total} bytes", file=sys.stderr)

    def test_phone_shows_every_view_without_scrolling_sideways(self):
        self.load("api", 2000)
        phone = Browser(phone=True)
        self.addCleanup(phone.close)
        for name, address in VIEWS.items():
            with self.subTest(view=name):
                self.show(address, phone)
                phone.wait("the view is shown", lambda: phone.text("h1") == HEADINGS[name])
                time.sleep(1)
                self.assertLessEqual(phone.run("return document.documentElement.scrollWidth"), 392)

    def test_keyboard_reaches_every_control(self):
        self.show("#/limit/api")
        self.browser.wait_text("Parameters")
        time.sleep(1)
        seen = self.browser.run("""
            const all = [...document.querySelectorAll('a[href], button, input, select, summary')]
              .filter((one) => one.offsetParent !== null);
            return all.filter((one) => one.tabIndex < 0).map((one) => one.outerHTML)""")
        self.assertEqual(seen, [])
        self.browser.click("Delete")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "ask-token")


class ValuesTest(PageTest):
    def test_key_shows_what_query_answers(self):
        for _ in range(7):
            self.assertTrue(self.server.acquire("slow", "user:7", 2)["granted"])
        self.show("#/key/slow/user%3A7")
        answer = self.server.call("query", buckets=[{"limit": "slow", "key": "user:7"}])["buckets"][0]
        self.browser.wait_text(f"{answer['remaining']}\xa0of {answer['capacity']} permits remain".replace("\xa0", " "))
        self.server.acquire("slow", "user:7")
        self.browser.wait_text(f"{int(answer['remaining']) - 1} of {answer['capacity']} permits remain", seconds=3)

    def test_key_shows_waiting_callers_and_the_next_grant_time(self):
        self.server.acquire("render", "me", 10)
        Held(self.server, "render", "me", 3)
        self.show("#/key/render/me")
        self.browser.wait("three callers wait", lambda: self.browser.fact("Waiting callers") == "3", 8)
        self.assertRegex(self.browser.fact("Next grant time"), r"in [\d.]+ m?s, at \d\d:\d\d:\d\d")
        self.show("#/")
        self.browser.wait("the overview counts them", lambda: self.browser.fact("Waiting callers") in ("2", "3"), 8)

    def test_limit_shows_the_counters_of_the_server(self):
        for _ in range(25):
            self.server.acquire("slow", "user:9")
        for _ in range(6):
            self.server.acquire("login", "eve", 1)
        time.sleep(1.2)
        self.show("#/limit/slow")
        stats = {one["limit"]: one for one in self.server.call("getStats")["limits"]}
        self.assertEqual(stats["slow"]["denied"], "5")
        self.browser.wait("the limit's counters are shown", lambda: self.browser.fact("Denied") == "5", 10)
        self.assertEqual(self.browser.fact("Granted"), "20, 20 permits")
        self.browser.wait_text("it denied 5 of 25 in the last hour (20 %)")
        self.browser.wait_text("user:9")
        self.show("#/limit/login")
        self.browser.wait_text("Enforced, it would have denied 1 of 6 in the last hour")

    def test_late_page_shows_what_happened(self):
        for _ in range(25):
            self.server.acquire("slow", "user:9")
        time.sleep(4)
        self.show("#/")
        self.browser.wait_text("Keys denied most")
        self.browser.wait("the table has the limit first",
                          lambda: self.browser.text("section[aria-label=Limits] tbody tr").startswith("slow"))
        self.assertIn("20 %", self.browser.text("section[aria-label=Limits] tbody tr"))
        self.browser.run("document.querySelectorAll('details.values')[1].open = true")
        self.browser.wait_text("Highest value in each minute")
        self.assertRegex(self.browser.text("details.values[open]"), r"\t[1-5](\.\d)?/s")

    def test_overview_names_limits_that_deny_most(self):
        self.show("#/")
        self.browser.wait_text("No problem found")
        for _ in range(80):
            self.server.acquire("slow", "eve")
        self.browser.wait_text("Note: Limit slow denied most of its requests in the last minute", seconds=10)
        self.browser.click("See the keys")
        self.browser.wait_text("slow", "h1")
        self.browser.wait_text("eve")

    def test_overview_says_what_is_wrong(self):
        self.show("#/")
        self.browser.wait_text("No problem found")
        self.server.write_limits(LIMITS + "  - { name: bad, rate: 10/fortnight }\n")
        self.browser.wait_text("The limits file was refused", seconds=10)
        self.browser.wait_text("fortnight")
        self.server.write_limits(LIMITS)
        self.browser.wait_text("No problem found", seconds=10)


class ChangesTest(PageTest):
    def test_put_a_limit_by_clicks(self):
        self.show("#/limit/api")
        self.browser.wait_text("100/s for each key")
        self.browser.click("Change")
        self.browser.wait_text("Change api", "h1")
        self.browser.type("[id='field-rate.permits']", "300")
        self.browser.click("Continue")
        self.browser.wait_text("rate: 100/s → 300/s", "dialog")
        self.browser.wait_text("Its definition returns when the file next changes", "dialog")
        self.confirm("Put the limit")
        self.browser.wait_text("300/s for each key")
        limit = self.server.call("getLimit", name="api")
        self.assertEqual(limit["rate"]["permits"], "300")
        self.assertEqual(limit["keys"][0]["key"], "user:42")  # parameters that were not changed stay
        self.assertEqual(limit["charges"], ["overall"])
        self.browser.wait_text("until that file or configuration next changes")
        self.assertEqual(self.browser.errors(), [])

    def test_servers_error_is_shown_beside_the_field(self):
        self.show("#/new")
        self.browser.wait_text("New limit", "h1")
        self.browser.type("#field-name", "fresh")
        self.browser.type("[id='field-rate.permits']", "10")
        self.browser.type("#field-burst", "0")
        self.browser.click("Continue")
        self.confirm("Put the limit")
        self.browser.wait("the error is beside the burst", lambda: "burst" in self.browser.text("#error-burst"))
        self.assertEqual(self.browser.run("return document.activeElement.id"), "field-burst")
        self.browser.type("#field-burst", "5")
        self.browser.click("Continue")
        self.browser.click("Put the limit", "dialog button")
        self.browser.wait_text("10/s for each key")

    def test_delete_a_limit(self):
        self.show("#/limit/login")
        self.browser.wait_text("Parameters")
        self.browser.click("Delete")
        self.browser.wait_text("It comes back when the file next changes", "dialog")
        self.confirm("Delete the limit")
        self.browser.wait_text("Overview", "h1")
        self.browser.wait("the limit is gone", lambda: "login" not in self.browser.text("section[aria-label=Limits]"))

    def test_limits_of_envoy_say_what_defines_them(self):
        self.server.stop()
        self.server = Server(BUILD, self.limits, ratelimit=(
            "domain: edge\ndescriptors:\n  - key: user\n"
            "    rate_limit: { unit: day, requests_per_unit: 5 }\n"))
        self.show("#/limit/edge%2F%2Fuser")
        self.browser.wait_text("Parameters")
        self.browser.click("Delete")
        self.browser.wait_text("Requests from Envoy that match its descriptor have no limit", "dialog")
        self.browser.wait_text("ratelimit.yaml:3:5) defines it. It comes back when the configuration "
                               "next changes", "dialog")
        self.browser.click("Cancel", "dialog button")
        self.browser.click("Change")
        self.browser.wait_text("Change edge//user", "h1")
        self.browser.type("[id='field-rate.permits']", "7")
        self.browser.click("Continue")
        self.browser.wait_text("Envoy's configuration (", "dialog")
        self.confirm("Put the limit")
        self.browser.wait_text("until that file or configuration next changes")
        self.assertEqual(self.browser.errors(), [])

    def test_reset_a_key(self):
        self.server.acquire("slow", "user:1", 15)
        self.show("#/key/slow/user%3A1")
        self.browser.wait_text("5 of 20 permits remain")
        self.browser.click("Reset")
        self.browser.wait_text("20 permits can then be taken at once", "dialog")
        self.confirm("Reset the key")
        self.browser.wait_text("20 of 20 permits remain", seconds=5)

    def test_wrong_token_is_refused_in_the_dialog(self):
        self.server.acquire("slow", "user:1", 15)
        self.show("#/key/slow/user%3A1")
        self.browser.click("Reset")
        self.browser.type("#ask-token", "wrong")
        self.browser.click("Reset the key", "dialog button")
        self.browser.wait("the dialog says so", lambda: "token" in self.browser.text("dialog [role=alert]"))
        self.assertEqual(self.server.call("query", buckets=[{"limit": "slow", "key": "user:1"}])["buckets"][0]["remaining"], "5")

    def test_without_token_file_changes_name_the_flag(self):
        self.server.stop()
        self.server = Server(BUILD, LIMITS, token=False)
        self.show("#/key/slow/x")
        self.browser.click("Reset")
        self.browser.click("Reset the key", "dialog button")
        self.browser.wait_text("--admin_token_file", "dialog [role=alert]")


class ConnectionTest(PageTest):
    def test_page_says_that_the_server_stopped_and_recovers(self):
        self.server.acquire("slow", "user:1", 15)
        self.show("#/")
        port = self.server.ports["http"].rsplit(":", 1)[1]
        self.server.stop()
        self.browser.wait_text("The server does not answer since", "#lost", 10)
        self.assertEqual(self.browser.text("#connection"), "no answer")
        self.server = Server(BUILD, LIMITS, port=port)
        self.browser.wait_live()
        self.browser.wait("the message is gone", lambda: self.browser.text("#lost") == "")
        self.server.acquire("slow", "user:1", 15)
        self.browser.wait("the page goes on", lambda: self.browser.fact("Decisions") != "", 5)

    def test_hanging_server_is_noticed(self):
        self.show("#/")
        os.kill(self.server.process.pid, signal.SIGSTOP)
        try:
            self.browser.wait_text("The server does not answer since", "#lost", 20)
        finally:
            os.kill(self.server.process.pid, signal.SIGCONT)
        self.browser.wait_live()

    def test_ten_tabs_share_one_stream(self):
        self.show("#/")
        driver = self.browser.driver
        for _ in range(9):
            driver.switch_to.new_window("tab")
            driver.get(self.server.url + "/")
            self.browser.wait_live()
            self.browser.wait("the tab has values", lambda: self.browser.fact("Decisions") not in ("", "–"))
        self.assertEqual(self.http_streams(), 1)

    def http_streams(self):
        """Open event streams, as the kernel shows the server's connections that stay."""
        answer = self.server.get("/v1/history")[2]
        self.assertIn(b"granted", answer)
        stats = self.server.call("getStats")
        http = next(one for one in stats["transports"] if one["transport"] == "http")
        return int(http["streams"]) - 1  # the call itself


class RedisTest(PageTest):
    limits = """limits:
  - { name: slow, rate: 1/m, burst: 20 }
  - { name: open, rate: 1/m, burst: 20, on_store_failure: allow }
  - { name: split, rate: 600/m, burst: 20, on_store_failure: split }
"""

    def start_server(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)
        return Server(BUILD, self.limits, store=self.redis.url)

    def remaining(self, limit, key):
        return self.server.call("query", buckets=[{"limit": limit, "key": key}])["buckets"][0].get("remaining")

    def test_key_shows_what_query_answers(self):
        for _ in range(3):
            self.assertTrue(self.server.acquire("slow", "user:7", 2, wantReceipt=True)["granted"])
        self.show("#/key/slow/user%3A7")
        self.assertEqual(self.remaining("slow", "user:7"), "14")
        self.browser.wait_text("14 of 20 permits remain")
        # 6, of which a part has come back by itself.
        self.assertEqual(self.browser.fact("Open receipts"), "3, which can give back 5 permits")
        self.server.acquire("slow", "user:7")
        self.browser.wait_text("13 of 20 permits remain", seconds=3)
        self.browser.click("Reset")
        self.confirm("Reset the key")
        self.browser.wait_text("20 of 20 permits remain", seconds=5)
        self.assertEqual(self.browser.errors(), [])

    def test_nodes_shows_redis_and_the_nodes(self):
        self.server.acquire("slow", "user:7")
        self.show("#/nodes")
        self.browser.wait("the kind is shown", lambda: self.browser.fact("Kind") == "redis")
        self.browser.wait("this node is alive", lambda: "this one" in self.browser.text("table"))
        self.assertIn("alive", self.browser.text("table"))
        self.browser.wait("commands are counted", lambda: self.browser.fact("Commands") not in ("", "0"))
        # Not known of Redis.
        self.assertEqual(self.browser.fact("Memory of the buckets"), "")

    def check_that_redis_is_missed(self):
        self.browser.wait_text("The store (redis) is unavailable since", seconds=15)
        self.server.acquire("open", "k")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.server.acquire("slow", "user:7")
        refused.exception.close()
        self.browser.wait("the tile says so", lambda: self.browser.fact("Store").startswith("unavailable"))
        self.browser.wait_text("let through")
        self.show("#/key/slow/user%3A7")
        self.browser.wait_text("unavailable", "main [role=status]", 10)

    def check_that_redis_is_back(self):
        self.browser.wait_text("permits remain", seconds=20)
        self.browser.wait("the problem is gone", lambda: self.browser.text("main [role=status]") == "", 20)
        self.show("#/")
        self.browser.wait_text("The store (redis) was unavailable until", seconds=15)
        self.assertTrue(self.browser.fact("Store").startswith("available"))

    def test_stopped_redis_is_shown_and_recovers(self):
        self.server.acquire("slow", "user:7")
        self.show("#/")
        self.redis.stop()
        self.check_that_redis_is_missed()
        self.redis.start()
        self.check_that_redis_is_back()

    def test_hanging_redis_is_shown_and_recovers(self):
        self.server.acquire("slow", "user:7")
        self.show("#/")
        os.kill(self.redis.process.pid, signal.SIGSTOP)
        try:
            self.server_calls_until_unavailable()
            self.check_that_redis_is_missed()
        finally:
            os.kill(self.redis.process.pid, signal.SIGCONT)
        self.check_that_redis_is_back()

    def server_calls_until_unavailable(self):
        for _ in range(3):
            try:
                self.server.acquire("slow", "user:7")
            except urllib.error.HTTPError as error:
                error.close()


class LoadTest(PageTest):
    limits = "limits:\n" + "".join(f"  - {{ name: tenant-{i:04d}, rate: {i + 1}/s }}\n" for i in range(1000))

    def test_a_thousand_limits(self):
        for i in range(0, 1000, 10):
            self.server.acquire(f"tenant-{i:04d}", "k", 1)
        self.show("#/")
        self.browser.wait_text("Show all 1,000")
        self.browser.click("Show all 1,000")
        self.browser.wait("all rows are there", lambda: self.browser.run("return document.querySelectorAll('section[aria-label=Limits] tbody tr').length") == 1000)
        self.browser.type("#filter", "0999")
        self.browser.wait("the filter finds one", lambda: self.browser.run("return document.querySelectorAll('section[aria-label=Limits] tbody tr').length") == 1)
        self.assertEqual(self.browser.errors(), [])


class ReadersTest(unittest.TestCase):
    def test_a_hundred_pages_and_a_scrape_each_second_cost_little(self):
        server = Server(BUILD, LIMITS)
        self.addCleanup(server.stop)
        host, port = server.ports["http"].rsplit(":", 1)
        readers = []
        for _ in range(100):
            reader = socket.create_connection((host, int(port)), timeout=10)
            reader.sendall(f"GET /v1/overview HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            self.addCleanup(reader.close)
            readers.append(reader)
        for reader in readers:
            start = b""
            while b"event: snapshot" not in start:
                start += self.read_some(reader)
        seconds = 10
        before = server.cpu_seconds()
        received = [0] * len(readers)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1)
            for i, reader in enumerate(readers):
                received[i] += self.read_some(reader).count(b"event: second")
            server.get("/metrics")
        share = (server.cpu_seconds() - before) / seconds
        print(f"\n100 readers and a scrape each second: {100 * share:.2f} % of a core", file=sys.stderr)
        self.assertGreaterEqual(min(received), seconds - 3)
        # 1 % is to be reached on a quiet machine.
        self.assertLess(share, 0.05)

    @staticmethod
    def read_some(reader):
        reader.setblocking(True)
        data = reader.recv(1 << 20)
        reader.setblocking(False)
        try:
            while True:
                more = reader.recv(1 << 20)
                if not more:
                    return data
                data += more
        except BlockingIOError:
            return data


class AccessibilityTest(PageTest):
    def setUp(self):
        if shutil.which("npm") is None:
            self.skipTest("npm is not installed, so axe-core was not run")
        folder = os.path.join(BUILD, "axe")
        self.axe = os.path.join(folder, "node_modules", "axe-core", "axe.min.js")
        if not os.path.exists(self.axe):
            installed = subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, AXE],
                                       capture_output=True, text=True, check=False)
            if installed.returncode != 0:
                self.skipTest(f"npm could not install {AXE}: {installed.stderr[-300:]}")
        super().setUp()

    def test_axe_finds_nothing(self):
        with open(self.axe, encoding="utf-8") as file:
            axe = file.read()
        self.load("api", 2000, keys=10)
        for dark in (False, True):
            browser = Browser(dark=dark)
            self.addCleanup(browser.close)
            for name, address in VIEWS.items():
                with self.subTest(view=name, dark=dark):
                    self.show(address, browser)
                    browser.wait("the view is shown", lambda: browser.text("h1") == HEADINGS[name])
                    time.sleep(2)
                    self.check(browser, axe)
            self.show("#/limit/api", browser)
            browser.wait_text("Parameters")
            browser.click("Delete")
            self.check(browser, axe)

    def check(self, browser, axe):
        # Through the driver's protocol, which the Content-Security-Policy does not bind.
        browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
        found = browser.driver.execute_async_script("""
            const done = arguments[arguments.length - 1];
            axe.run(document).then((result) => done(result.violations.map((one) =>
              `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 200)).join(' | ')}`)))""")
        self.assertEqual(found, [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=BUILD)
    options, rest = parser.parse_known_args()
    BUILD = os.path.abspath(options.build)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
