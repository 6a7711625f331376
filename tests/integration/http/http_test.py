#!/usr/bin/env python3
"""The HTTP port of the real sluiced: every RPC in JSON, /v1/check, access, and bad input.

usage: http_test.py SOURCE_DIR SLUICED [TEST ...]
"""
import base64
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

from http_server import Server, WAIT_S, read_all, read_until

SOURCE, SLUICED = (os.path.abspath(path) for path in sys.argv[1:3])
TOKEN = "0123456789abcdef-secret"


def charge(limit, key, permits=None):
    one = {"limit": limit, "key": key}
    if permits is not None:
        one["permits"] = permits
    return one


class HttpTest(unittest.TestCase):
    """A server for all tests of a class."""
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(SLUICED, *cls.more_flags())

    @classmethod
    def more_flags(cls):
        return cls.flags

    @classmethod
    def tearDownClass(cls):
        if cls.server.close() != 0:
            raise AssertionError("sluiced did not exit with 0")

    def expect_problem(self, answer, status, code, *words):
        got, document = answer
        self.assertEqual(got, status, document)
        self.assertEqual(document["status"], status)
        self.assertEqual(document["code"], code)
        for word in words:
            self.assertIn(word, document["detail"])


def write_token():
    path = f"/tmp/sluice-http-test-token-{os.getpid()}"
    with open(path, "w") as file:
        file.write(TOKEN)
    return path


class WithToken(HttpTest):
    @classmethod
    def more_flags(cls):
        cls.token_file = write_token()
        return (f"--admin_token_file={cls.token_file}", *cls.flags)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        os.unlink(cls.token_file)


class RateLimiterTest(HttpTest):
    def test_acquire_grants_until_the_burst_is_spent(self):
        for left in (4, 3, 2, 1, 0):
            status, answer = self.server.call("acquire", {"charges": [charge("api", "spent")]})
            self.assertEqual(status, 200)
            self.assertTrue(answer["granted"])
            self.assertEqual(answer["charges"][0]["remaining"], str(left))
            self.assertEqual(answer["charges"][1]["limit"], "overall")
        status, answer = self.server.call("acquire", {"charges": [charge("api", "spent")]})
        self.assertEqual(status, 200)  # a denial is an answer
        self.assertFalse(answer["granted"])
        self.assertEqual(answer["charges"][0]["reason"], "REASON_NOT_ENOUGH")
        self.assertRegex(answer["retryAfter"], r"^[0-9.]+s$")

    def test_acquire_refund_and_refund_again(self):
        _, answer = self.server.call(
            "acquire", {"charges": [charge("api", "refund", 3)], "wantReceipt": True})
        self.assertGreater(len(base64.b64decode(answer["receipt"])), 16)
        receipt = {"receipt": answer["receipt"]}
        status, refund = self.server.call("refund", receipt)
        self.assertEqual((status, refund["outcome"]), (200, "REFUND_OUTCOME_REFUNDED"))
        self.assertEqual([(one["limit"], one["key"]) for one in refund["charges"]],
                         [("api", "refund"), ("overall", "")])
        _, again = self.server.call("refund", receipt)
        self.assertEqual(again["outcome"], "REFUND_OUTCOME_ALREADY_REFUNDED")

    def test_batch_answers_each_acquisition(self):
        status, answer = self.server.call("acquireBatch", {"acquisitions": [
            {"charges": [charge("api", "batch")]}, {"charges": [charge("nowhere", "k")]},
            {"charges": [charge("api", "batch", 5)]}]})
        self.assertEqual(status, 200)
        first, second, third = answer["results"]
        self.assertTrue(first["response"]["granted"])
        self.assertEqual(second["error"]["code"], 5)
        self.assertFalse(third["response"]["granted"])

    def test_largest_batch_is_exact(self):
        one = {"charges": [charge("wide", "large")]}
        status, answer = self.server.call("acquireBatch", {"acquisitions": [one] * 4096})
        self.assertEqual(status, 200)
        self.assertEqual(sum(one["response"]["granted"] for one in answer["results"]), 4096)
        status, answer = self.server.call("acquireBatch", {"acquisitions": [one] * 4097})
        self.expect_problem((status, answer), 400, "INVALID_ARGUMENT", "acquisitions: 4097")

    def test_small_call_goes_on_in_the_background(self):
        """A hundred receipts fit 2 KiB, and are several slices of work."""
        wrong = {"receipt": base64.b64encode(b"wrong").decode()}
        status, answer = self.server.call("settleBatch", {"settlements": [wrong] * 80})
        self.assertEqual(status, 200, answer)
        self.assertEqual([one["error"]["code"] for one in answer["results"]], [3] * 80)

    def test_query_takes_nothing(self):
        for _ in range(2):
            status, answer = self.server.call("query", {"buckets": [charge("api", "query")]})
            self.assertEqual(status, 200)
            self.assertEqual(answer["buckets"][0]["remaining"], "5")

    def test_stream_of_requests_has_no_form(self):
        self.expect_problem(self.server.call("acquireStream"), 501, "UNIMPLEMENTED",
                            "acquireBatch")

    def test_hold_answers_at_the_grant_time(self):
        hold = {"charges": [charge("overall", "", 5000)], "maxWait": "5s", "hold": True}
        self.assertTrue(self.server.call("acquire", hold)[1]["granted"])
        begun = time.monotonic()
        status, answer = self.server.call("acquire", hold)
        self.assertEqual(status, 200)
        self.assertTrue(answer["granted"])
        self.assertGreater(time.monotonic() - begun, 0.5)

    def waiting(self, key):
        _, answer = self.server.call("query", {"buckets": [charge("slow", key)]})
        return int(answer["buckets"][0]["waiting"])

    def test_held_caller_that_leaves_gives_back(self):
        body = json.dumps({"charges": [charge("slow", "leaver")], "maxWait": "60s", "hold": True})
        request = ("POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n"
                   f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        with self.server.connect() as first:
            first.sendall(request.encode())
            self.assertIn(b"200 OK", read_until(first, b"}"))
        for leave in (lambda one: one.close(), lambda one: one.shutdown(socket.SHUT_WR)):
            held = self.server.connect()
            held.sendall(request.encode())
            self.await_true(lambda: self.waiting("leaver") == 1)
            leave(held)
            self.await_true(lambda: self.waiting("leaver") == 0)
            held.close()

    def await_true(self, question):
        deadline = time.monotonic() + WAIT_S
        while not question():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def watch(self, *buckets):
        body = json.dumps({"buckets": list(buckets), "minInterval": "0.010s"})
        connection = self.server.connect()
        connection.sendall(
            ("POST /v1/watch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        return connection

    def test_watch_sends_first_state_and_changes(self):
        with self.watch(charge("api", "watched")) as connection:
            data = read_until(connection, b"\n\n\r\n")
            self.assertIn(b"content-type: text/event-stream", data)
            first = json.loads(re.search(rb"data: (.*)\n\n", data)[1])
            self.assertEqual(first["buckets"][0]["remaining"], "5")
            self.server.call("acquire", {"charges": [charge("api", "watched", 2)]})
            second = json.loads(
                re.search(rb"data: (.*)\n\n", read_until(connection, b"\n\n\r\n"))[1])
            self.assertEqual(second["buckets"][0]["remaining"], "3")

    def test_watch_of_unknown_limit_is_a_problem(self):
        self.expect_problem(self.server.call("watch", {"buckets": [charge("nowhere", "k")]}), 404,
                            "NOT_FOUND", "buckets[0].limit")

    def test_watch_ends_with_an_event_when_the_server_drains(self):
        server = Server(SLUICED)
        try:
            body = json.dumps({"buckets": [charge("api", "k")]})
            with server.connect() as connection:
                connection.sendall(
                    ("POST /v1/watch HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
                read_until(connection, b"\n\n\r\n")
                server.process.send_signal(15)
                rest = read_all(connection)
            self.assertEqual(server.process.wait(WAIT_S), 0)
            self.assertIn(b"event: error\ndata: {", rest)
            self.assertIn(b'"code":"UNAVAILABLE"', rest)
            self.assertTrue(rest.endswith(b"0\r\n\r\n"))
        finally:
            self.assertEqual(server.close(), 0)


class LimitAdminTest(WithToken):
    def change(self, method, message):
        return self.server.call(method, message, token=TOKEN)

    def test_put_get_list_delete(self):
        status, put = self.change("putLimit", {"limit": {
            "name": "new", "rate": {"permits": 3, "period": "60s"}, "burst": "4"}})
        self.assertEqual(status, 200, put)
        self.assertFalse(put["replaced"])
        _, got = self.server.call("getLimit", {"name": "new"})
        self.assertEqual((got["rate"]["permits"], got["burst"]), ("3", "4"))
        _, listed = self.server.call("listLimits")
        self.assertIn("new", [limit["name"] for limit in listed["limits"]])
        self.assertEqual(self.change("deleteLimit", {"name": "new"})[0], 200)
        self.expect_problem(self.server.call("getLimit", {"name": "new"}), 404, "NOT_FOUND")

    def test_reset_key_fills_the_bucket(self):
        self.server.call("acquire", {"charges": [charge("api", "reset", 5)]})
        status, answer = self.change("resetKey", {"limit": "api", "key": "reset"})
        self.assertEqual((status, answer), (200, {"existed": True}))
        _, query = self.server.call("query", {"buckets": [charge("api", "reset")]})
        self.assertEqual(query["buckets"][0]["remaining"], "5")

    def test_put_with_an_end_and_a_reason(self):
        limit = {"name": "sale", "rate": {"permits": 3}}
        status, put = self.change(
            "putLimit", {"limit": limit, "reason": "sale", "expiresAfter": "3600s"})
        self.assertEqual((status, put["limit"]["reason"]), (200, "sale"))
        self.assertRegex(put["limit"]["expiresIn"], r"^3[0-9.]+s$")
        self.expect_problem(
            self.change("putLimit", {"limit": limit, "expiresAfter": "-1s"}), 400,
            "INVALID_ARGUMENT", "expires_after: -1s; from 1s")
        self.change("deleteLimit", {"name": "sale"})

    def test_put_of_bad_limit_names_field(self):
        self.expect_problem(
            self.change("putLimit", {"limit": {"name": "bad", "rate": {"permits": 0}}}), 400,
            "INVALID_ARGUMENT", "rate")

    def test_delete_of_charged_limit_is_refused(self):
        self.expect_problem(self.change("deleteLimit", {"name": "overall"}), 400,
                            "FAILED_PRECONDITION", "api")

    def test_lift_floor_needs_redis(self):
        self.expect_problem(self.change("liftFloor", {"limit": "api"}), 400,
                            "FAILED_PRECONDITION", "memory")

    def test_list_keys_config_status_and_stats(self):
        self.server.call("acquire", {"charges": [charge("wide", "used", 7)]})
        _, keys = self.server.call("listKeys", {"limit": "wide"})
        self.assertIn(("used", "7"), [(key["key"], key["estimate"]) for key in keys["keys"]])
        _, config = self.server.call("getConfigStatus")
        self.assertEqual(config["limits"], 7)
        _, stats = self.server.call("getStats")
        self.assertGreater(int(stats["decisions"]), 0)
        paths = [method["method"] for method in stats["methods"]]
        self.assertIn("/v1/acquire", paths)
        self.assertIn("http", [one["transport"] for one in stats["transports"]])

    def test_changes_need_the_token(self):
        for method in ("putLimit", "deleteLimit", "resetKey", "liftFloor"):
            self.expect_problem(self.server.call(method), 401, "UNAUTHENTICATED",
                                "--admin_token_file")
            self.expect_problem(self.server.call(method, token="wrong-token-wrong-token"), 401,
                                "UNAUTHENTICATED", "not the token")
        status, headers, _ = self.server.request("POST", "/v1/putLimit")
        self.assertEqual((status, headers["www-authenticate"]), (401, "Bearer"))
        self.assertIn("admin_call_refused", self.server.said())


class CheckTest(HttpTest):
    def check(self, query, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.request("GET", f"/v1/check?{query}", None, headers)

    def test_grants_with_headers_and_without_body(self):
        status, headers, body = self.check("limit=api&key=a")
        self.assertEqual((status, body), (200, ""))
        self.assertEqual(headers["ratelimit-policy"],
                         '"api";q=5;w=18000, "overall";q=5000;w=1')
        self.assertEqual(headers["ratelimit"], '"api";r=4;t=3600, "overall";r=4999;t=1')
        self.assertNotIn("retry-after", headers)
        self.assertNotIn("x-ratelimit-limit", headers)

    def test_denies_with_retry_after(self):
        self.check("limit=slow&key=d")
        status, headers, body = self.check("limit=slow&key=d")
        self.assertEqual((status, body), (429, ""))
        self.assertEqual(headers["ratelimit"], '"slow";r=0;t=10')
        self.assertEqual(headers["retry-after"], "10")

    def test_denies_with_chosen_status_headers_and_body(self):
        self.check("limit=slow&key=e")
        status, headers, body = self.check(
            "limit=slow&key=e&deny_status=403&x_ratelimit=1&body=1")
        self.assertEqual(status, 403)
        self.assertEqual(headers["x-ratelimit-limit"], "1")
        self.assertEqual(headers["x-ratelimit-remaining"], "0")
        self.assertEqual(headers["x-ratelimit-reset"], "10")
        self.assertFalse(json.loads(body)["granted"])

    def test_takes_parameters_from_headers(self):
        status, headers, _ = self.check("", Sluice_Limit="api", Sluice_Key="h", Sluice_Permits="5")
        self.assertEqual((status, headers["ratelimit"].split(",")[0]), (200, '"api";r=0;t=18000'))
        status, _, _ = self.check("", Sluice_Limit="api", Sluice_Key="h",
                                  Sluice_Deny_Status="503")
        self.assertEqual(status, 503)

    def test_decides_on_the_bucket_of_grpc_and_json(self):
        self.check("limit=api&key=shared&permits=2")
        _, answer = self.server.call("query", {"buckets": [charge("api", "shared")]})
        self.assertEqual(answer["buckets"][0]["remaining"], "3")
        self.check("limit=api&key_header=X-User&key_header=X-Org", X_User="u,1", X_Org="o")
        _, answer = self.server.call("query", {"buckets": [charge("api", "u%2C1,o")]})
        self.assertEqual(answer["buckets"][0]["remaining"], "4")

    def test_serves_any_method_and_keeps_connection(self):
        with self.server.connect() as connection:
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
                connection.sendall((f"{method} /v1/check?limit=wide HTTP/1.1\r\n"
                                    "Host: localhost\r\n\r\n").encode())
                self.assertTrue(read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 200"))

    def test_errors_name_what_is_wrong(self):
        for query, status, word in (
                ("limit=nowhere", 404, "limit: no limit is named"),
                ("key=k", 400, "limit: not given"),
                ("limit=api&permits=0", 400, "permits: 0"),
                ("limit=api&permits=6", 400, "permits: 6"),
                ("limit=api&key=" + 513 * "x", 400, "key: 513 bytes"),
                ("limit=api&key=%FF", 400, "key: not valid UTF-8"),
                ("limit=api&deny_status=200", 400, "deny_status"),
                ("limit=api&x=1", 400, '"x": no such parameter')):
            got, _, body = self.check(query)
            self.assertEqual(got, status, body)
            self.assertIn(word, json.loads(body)["detail"])
        status, _, body = self.server.request("POST", "/v1/check?limit=api", "body")
        self.assertEqual(status, 413, body)

    def test_takes_slots_only_if_the_answer_has_the_receipt(self):
        for limit in ("jobs", "job_calls"):
            status, _, body = self.check(f"limit={limit}&key=k")
            self.assertEqual(status, 400, body)
            self.assertIn('limit: slots of limit "jobs", which has algorithm concurrency',
                          json.loads(body)["detail"])
        for key in ("", "k"):
            _, answer = self.server.call("query", {"buckets": [charge("jobs", key)]})
            self.assertEqual(int(answer["buckets"][0]["holds"]), 0)
        status, _, body = self.check("limit=jobs&key=k&body=1")
        self.assertEqual(status, 200, body)
        status, answer = self.server.call("settle", {"receipt": json.loads(body)["receipt"]})
        self.assertEqual((status, answer["outcome"]), (200, "SETTLE_OUTCOME_SETTLED"))

    def test_concurrent_checks_are_exact(self):
        connections = [self.server.connect() for _ in range(20)]
        for connection in connections:
            connection.sendall(3 * b"GET /v1/check?limit=api&key=exact HTTP/1.1\r\n"
                               b"Host: localhost\r\n\r\n")
        granted = 0
        for connection in connections:
            data = b""
            while data.count(b"HTTP/1.1 ") < 3 or not data.endswith(b"\r\n\r\n"):
                data += connection.recv(65536)
            granted += data.count(b"HTTP/1.1 200")
            connection.close()
        self.assertEqual(granted, 5)


class SiteTest(WithToken):
    def status(self, target="/v1/check?limit=wide", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.request("GET", target, None, headers)[0]

    def test_serves_only_its_hosts(self):
        for host in ("localhost", "127.0.0.1", "[::1]", f"localhost:{self.server.port}",
                     "LOCALHOST", "localhost.", "127.1.2.3"):
            self.assertEqual(self.status(Host=host), 200, host)
        for host in ("evil.example", f"evil.example:{self.server.port}", "localhost.evil.example",
                     "10.0.0.1", ""):
            self.assertEqual(self.status(Host=host), 403, host)

    def test_names_the_flag(self):
        _, _, body = self.server.request("GET", "/v1/check?limit=wide", None,
                                         {"Host": "evil.example"})
        self.assertIn("--http_hosts", json.loads(body)["detail"])

    def test_serves_only_its_own_pages(self):
        own = f"localhost:{self.server.port}"
        self.assertEqual(self.status(Host=own, Origin=f"http://{own}"), 200)
        self.assertEqual(self.status(Host=own, Origin=f"https://{own}"), 200)
        for origin in ("http://evil.example", "null", "http://localhost:1", f"file://{own}",
                       f"http://{own}.evil.example"):
            self.assertEqual(self.status(Host=own, Origin=origin), 403, origin)
        self.assertEqual(self.status(Sec_Fetch_Site="same-origin"), 200)
        for site in ("cross-site", "same-site"):
            self.assertEqual(self.status(Sec_Fetch_Site=site), 403)
        self.assertEqual(self.status("/openapi.json", Sec_Fetch_Site="cross-site"), 200)

    def test_answers_have_no_cors_and_no_cookies(self):
        _, headers, _ = self.server.request("OPTIONS", "/v1/putLimit", None,
                                            {"Access-Control-Request-Method": "POST"})
        self.assertFalse([name for name in headers if name.startswith("access-control")])
        self.assertNotIn("set-cookie", headers)

    def test_reading_needs_nothing_on_loopback(self):
        self.assertEqual(self.server.call("listLimits")[0], 200)


class NamedHostTest(HttpTest):
    flags = ("--http_hosts=sluice.example,10.0.0.1",)

    def test_serves_the_named_hosts_only(self):
        for host, status in (("sluice.example", 200), ("Sluice.Example:80", 200),
                             ("10.0.0.1:7202", 200), ("localhost", 403), ("127.0.0.1", 403)):
            got, _, _ = self.server.request("GET", "/v1/check?limit=wide", None, {"Host": host})
            self.assertEqual(got, status, host)


class ChangesWithoutTokenTest(HttpTest):
    def test_changes_name_the_flag(self):
        for method in ("putLimit", "deleteLimit", "resetKey", "liftFloor"):
            self.expect_problem(self.server.call(method), 403, "PERMISSION_DENIED",
                                "--admin_token_file")


class BeyondLoopbackTest(HttpTest):
    flags = ("--http_listen=0.0.0.0:0",)

    def test_reading_is_refused_and_data_is_served(self):
        self.expect_problem(self.server.call("listLimits"), 403, "PERMISSION_DENIED",
                            "--admin_token_file", "--http_tls_client_ca")
        status, answer = self.server.call("acquire", {"charges": [charge("wide", "k")]})
        self.assertEqual(status, 200, answer)


class BeyondLoopbackWithTokenTest(WithToken):
    flags = ("--http_listen=0.0.0.0:0",)

    def test_reading_needs_the_token(self):
        self.expect_problem(self.server.call("listLimits"), 401, "UNAUTHENTICATED")
        self.assertEqual(self.server.call("listLimits", token=TOKEN)[0], 200)


class ClientsTest(HttpTest):
    """The clients file: tokens, calls and limits. The gRPC side has the other credentials."""

    LIMITS = '[wide, "slo*"]'

    @classmethod
    def more_flags(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="sluice-http-clients-")
        cls.clients = os.path.join(cls.folder.name, "clients.yaml")
        cls.write(cls.LIMITS)
        cls.audit = os.path.join(cls.folder.name, "audit")
        return (f"--clients={cls.clients}", f"--audit_log={cls.audit}")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    @classmethod
    def write(cls, limits):
        digest = lambda token: hashlib.sha256(token.encode()).hexdigest()
        with open(cls.clients + ".new", "w") as file:
            file.write(f"""clients:
- {{ name: shop, token_sha256: {digest("shop")}, limits: {limits}, calls: [acquire, query] }}
- {{ name: view, token_sha256: {digest("view")}, calls: [admin_view] }}
- {{ name: admin, token_sha256: {digest("admin")}, calls: [admin_view, admin_change] }}
""")
        os.rename(cls.clients + ".new", cls.clients)

    def wait_until(self, condition):
        until = time.time() + WAIT_S
        while not condition() and time.time() < until:
            time.sleep(0.05)
        self.assertTrue(condition())

    def acquire(self, limit, token="shop"):
        return self.server.call("acquire", {"charges": [charge(limit, "k")]}, token=token)

    def test_data_calls_need_a_client_with_the_call_and_the_limit(self):
        self.assertEqual(self.acquire("wide")[0], 200)
        self.assertEqual(self.acquire("slow")[0], 200)
        self.expect_problem(self.acquire("api"), 403, "PERMISSION_DENIED", "charges[0].limit",
                            'client "shop"', "wide, slo*")
        self.expect_problem(self.acquire("wide", token=None), 401, "UNAUTHENTICATED")
        self.expect_problem(self.acquire("wide", token="Shop"), 401, "UNAUTHENTICATED",
                            "no client has this token")
        self.expect_problem(self.server.call("refund", {"receipt": "AAAA"}, token="shop"), 403,
                            "PERMISSION_DENIED", "may not refund", "acquire, query")

    def test_batch_is_refused_per_acquisition(self):
        status, answer = self.server.call(
            "acquireBatch", {"acquisitions": [{"charges": [charge(limit, "k")]}
                                              for limit in ("wide", "api")]}, token="shop")
        self.assertEqual(status, 200, answer)
        self.assertTrue(answer["results"][0]["response"]["granted"])
        self.assertIn("acquisitions[1].charges[0].limit", answer["results"][1]["error"]["message"])

    def test_gateways_are_clients_too(self):
        for limit, token, expected in (("wide", "shop", 200), ("api", "shop", 403),
                                       ("wide", "view", 403), ("wide", "none", 401)):
            status, _, text = self.server.request("GET", f"/v1/check?limit={limit}&key=k", None,
                                                  {"Authorization": f"Bearer {token}"})
            self.assertEqual(status, expected, text)

    def test_admin_calls_need_their_role(self):
        for token, list_status, reset_status in (("shop", 403, 403), ("view", 200, 403),
                                                 ("admin", 200, 200), (None, 401, 401)):
            self.assertEqual(self.server.call("listLimits", token=token)[0], list_status, token)
            reset = self.server.call("resetKey", {"limit": "wide", "key": "k"}, token=token)
            self.assertEqual(reset[0], reset_status, (token, reset))
        self.assertEqual(self.server.request("GET", "/metrics")[0], 401)
        self.assertEqual(self.server.request("GET", "/healthz")[0], 200)

    def test_changes_are_in_the_audit_log_when_they_are_confirmed(self):
        limit = {"name": "audited", "rate": {"permits": "5", "period": "1s"}}
        for permits in ("5", "7"):
            limit["rate"]["permits"] = permits
            self.assertEqual(self.server.call("putLimit", {"limit": limit}, token="admin")[0], 200)
        self.assertEqual(self.server.call("deleteLimit", {"name": "none"}, token="admin")[0], 404)
        self.assertEqual(self.server.call("deleteLimit", {"name": "audited"}, token="view")[0], 403)
        self.assertEqual(self.server.call("listLimits", token="admin")[0], 200)
        with open(self.audit) as file:
            lines = [json.loads(line) for line in file]
        lines = [line for line in lines if line["call"] in ("PutLimit", "DeleteLimit")]
        for line in lines[::2]:
            self.assertEqual((line["outcome"], line["after"]), ("STARTED", None))
        put, again, failed = lines[1::2]
        for line in lines:
            self.assertEqual(line["client"], "admin")
            self.assertTrue(line["peer"].startswith("127.0.0.1:"), line)
        self.assertEqual((put["outcome"], put["before"]), ("OK", None))
        self.assertEqual(put["request"]["limit"]["rate"]["permits"], "5")
        self.assertEqual(again["before"], put["after"])
        self.assertEqual(again["after"]["rate"]["permits"], "7")
        self.assertEqual((failed["call"], failed["outcome"]), ("DeleteLimit", "NOT_FOUND"))
        self.assertIn("none", failed["error"])
        said = self.server.said()
        self.assertIn("event=admin_change call=PutLimit client=admin", said)

    def test_reload_changes_the_rights(self):
        self.write("[api]")
        self.wait_until(lambda: self.acquire("api")[0] == 200)
        self.assertEqual(self.acquire("wide")[0], 403)
        self.write(self.LIMITS)
        self.wait_until(lambda: self.acquire("wide")[0] == 200)


class TlsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-http-tls-")
        run = lambda *command: subprocess.run(command, check=True, cwd=self.folder.name,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj",
            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
        self.cert, self.key = (os.path.join(self.folder.name, n) for n in ("cert.pem", "key.pem"))

    def tearDown(self):
        self.folder.cleanup()

    def context(self, protocols=(), with_certificate=False):
        context = ssl.create_default_context(cafile=self.cert)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        if with_certificate:
            context.load_cert_chain(self.cert, self.key)
        return context

    def ask(self, server, context):
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(b"POST /v1/listLimits HTTP/1.1\r\nHost: localhost\r\n"
                                   b"Connection: close\r\n\r\n")
                return connection.selected_alpn_protocol(), read_all(connection)

    def test_serves_tls(self):
        server = Server(SLUICED, f"--http_tls_cert={self.cert}", f"--http_tls_key={self.key}")
        try:
            for offered, chosen in (((), None), (("h2", "http/1.1"), "http/1.1")):
                alpn, answer = self.ask(server, self.context(offered))
                self.assertEqual(alpn, chosen)
                self.assertTrue(answer.startswith(b"HTTP/1.1 200"), answer[:200])
            with self.assertRaises(ssl.SSLError):
                self.ask(server, self.context(("h2",)))
        finally:
            self.assertEqual(server.close(), 0)

    def test_client_certificate_allows_reading_beyond_loopback(self):
        server = Server(SLUICED, "--http_listen=0.0.0.0:0", f"--http_tls_cert={self.cert}",
                        f"--http_tls_key={self.key}", f"--http_tls_client_ca={self.cert}")
        try:
            _, answer = self.ask(server, self.context(with_certificate=True))
            self.assertTrue(answer.startswith(b"HTTP/1.1 200"), answer[:200])
            try:
                _, answer = self.ask(server, self.context())
                self.assertEqual(answer, b"")
            except (ssl.SSLError, ConnectionError):
                pass
        finally:
            self.assertEqual(server.close(), 0)

    def test_data_port_with_client_certificates_closes_plain_http(self):
        server = Server(SLUICED, f"--tls_cert={self.cert}", f"--tls_key={self.key}",
                        f"--tls_client_ca={self.cert}")
        try:
            for target in ("/v1/check?limit=wide", "/v1/acquire", "/v1/query", "/v1/refund"):
                status, _, body = server.request("POST", target)
                self.assertEqual(status, 403)
                self.assertIn("--http_tls_client_ca", json.loads(body)["detail"])
        finally:
            self.assertEqual(server.close(), 0)


class BadInputTest(HttpTest):
    def test_unknown_path_and_method(self):
        for method, path, status in (("GET", "/v2/acquire", 404), ("GET", "/v1/acquire", 405),
                                     ("BREW", "/v1/acquire", 501), ("PUT", "/openapi.json", 405)):
            got, headers, body = self.server.request(method, path)
            self.assertEqual(got, status, body)
            self.assertEqual(headers["content-type"], "application/problem+json")
            if status == 405:
                self.assertIn(headers["allow"], ("POST", "GET, HEAD"))

    def test_malformed_json(self):
        for text in ("{", "[]", "nonsense", '{"charges":[{"limit":"a\xff"}]}',
                     '{"charges":[{"permits":-1}]}', "[" * 1000, '{"charges":' * 200):
            status, answer = self.server.call("acquire", text)
            self.assertEqual((status, answer["code"]), (400, "INVALID_ARGUMENT"), text[:20])
            self.assertLess(len(answer["detail"]), 1000)

    def test_unknown_field_is_named(self):
        self.expect_problem(self.server.call("acquire", {"charges": [{"limitt": "api"}]}), 400,
                            "INVALID_ARGUMENT", "charges[0]", "limitt")
        self.expect_problem(self.server.call("getLimit", {"nam": "api"}), 400, "INVALID_ARGUMENT",
                            "nam")

    def test_content_type_must_be_json(self):
        for headers in ({}, {"Content-Type": "text/plain"}):
            status, _, body = self.server.request("POST", "/v1/acquire", "{}", headers)
            self.assertEqual(status, 415, body)
            self.assertIn("application/json", json.loads(body)["detail"])
        status, _, _ = self.server.request("POST", "/v1/listLimits", "{}",
                                           {"Content-Type": "Application/JSON; charset=utf-8"})
        self.assertEqual(status, 200)

    def test_body_of_100_megabytes(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /v1/acquireBatch HTTP/1.1\r\nHost: localhost\r\n"
                               b"Content-Type: application/json\r\n"
                               b"Content-Length: 100000000\r\n\r\n")
            self.assertIn(b"HTTP/1.1 413", read_until(connection, b"\r\n\r\n"))

    def test_chunked_body_of_100_megabytes(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /v1/acquireBatch HTTP/1.1\r\nHost: localhost\r\n"
                               b"Transfer-Encoding: chunked\r\n\r\n")
            before = self.resident()
            piece = b"10000\r\n" + 0x10000 * b" " + b"\r\n"
            try:
                for _ in range(100_000_000 // 0x10000):
                    connection.sendall(piece)
            except OSError:
                pass  # it was refused long before
            self.assertLess(self.resident() - before, 16 << 20)
            self.assertIn(b"HTTP/1.1 413", read_until(connection, b"\r\n\r\n"))

    def test_thousand_headers(self):
        with self.server.connect() as connection:
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" +
                               b"".join(b"X-%d: y\r\n" % i for i in range(1000)) + b"\r\n")
            self.assertIn(b"HTTP/1.1 431", read_until(connection, b"\r\n\r\n"))

    def test_bomb_of_braces_takes_little_memory(self):
        bomb = '{"acquisitions":[' + ",".join(300_000 * ["{}"]) + "]}"
        before = self.resident()
        status, answer = self.server.call("acquireBatch", bomb)
        self.assertEqual(status, 400, answer)
        self.assertLess(self.resident() - before, 100 << 20)
        status, _, _ = self.server.request("POST", "/v1/acquireBatch", bomb + bomb,
                                           {"Content-Type": "application/json"})
        self.assertEqual(status, 413)

    def resident(self):
        with open(f"/proc/{self.server.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_serves_others_after_all_that(self):
        self.assertEqual(self.server.request("GET", "/v1/check?limit=wide")[0], 200)


class OpenApiTest(HttpTest):
    def test_lists_every_rpc(self):
        status, _, text = self.server.request("GET", "/openapi.json")
        self.assertEqual(status, 200)
        document = json.loads(text)
        rpcs = set()
        for name in ("rate_limiter", "admin"):
            with open(os.path.join(SOURCE, "proto", "sluice", "v1", f"{name}.proto")) as file:
                rpcs |= set(re.findall(r"^  rpc (\w+)", file.read(), re.MULTILINE))
        rpcs.remove("AcquireStream")
        self.assertEqual({f"/v1/{rpc[0].lower()}{rpc[1:]}" for rpc in rpcs} | {"/v1/check"},
                         set(document["paths"]))
        for reference in re.findall(r'"#/components/schemas/([^"]+)"', text):
            self.assertIn(reference, document["components"]["schemas"])

    def test_validator_accepts_it(self):
        validator = shutil.which("openapi-spec-validator")
        if validator is None:
            self.skipTest("openapi-spec-validator is not here (./dev manifests installs it)")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(self.server.request("GET", "/openapi.json")[2])
            file.flush()
            done = subprocess.run([validator, file.name], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout[:2000])

    def test_every_path_is_served(self):
        document = json.loads(self.server.request("GET", "/openapi.json")[2])
        for path, operations in document["paths"].items():
            for method in operations:
                status, _, text = self.server.request(method.upper(), path)
                self.assertNotIn(status, (405, 501), path)
                self.assertNotIn("no such path", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
