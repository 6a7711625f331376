#!/usr/bin/env python3
"""Rights that the clients file takes away while a request or a stream lasts.

usage: rights_test.py SLUICED [TEST ...]
"""
import hashlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

from http_server import Server, WAIT_S, read_all, read_until

SLUICED = os.path.abspath(sys.argv[1])


def client(name, calls, more=""):
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"- {{ name: {name}, token_sha256: {digest}, calls: [{calls}], {more} }}\n"


class RightsTest(unittest.TestCase):
    """A server whose clients' tokens are their names."""
    shop = client("shop", "acquire, query", 'limits: "*"')
    admin = client("admin", "admin_view, admin_change", "max_streams: 1")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-rights-")
        self.addCleanup(self.folder.cleanup)
        self.clients = os.path.join(self.folder.name, "clients.yaml")
        self.reloads = 0
        self.write(self.shop, self.admin)
        self.server = Server(SLUICED, f"--clients={self.clients}")

    def tearDown(self):
        self.assertEqual(self.server.close(), 0)

    def write(self, *clients):
        with open(self.clients + ".new", "w") as file:
            file.write("clients:\n" + "".join(clients))
        os.rename(self.clients + ".new", self.clients)

    def reload(self, *clients):
        self.write(*clients)
        self.reloads += 1
        until = time.time() + WAIT_S
        while self.server.said().count("event=clients_reloaded") < self.reloads:
            self.assertLess(time.time(), until)
            time.sleep(0.02)

    def send_head(self, path, token, body=b"", method="POST"):
        """A connection on which all of a request was sent but its body."""
        connection = self.server.connect()
        self.addCleanup(connection.close)
        connection.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: {self.server.http}\r\nConnection: close\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        if body:
            # The rights were checked, and the body is waited for.
            self.assertTrue(read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100"))
        return connection

    def answer_after(self, path, token, message, *clients):
        """The status and the problem of a call before whose body the clients are changed."""
        body = json.dumps(message).encode()
        connection = self.send_head(path, token, body)
        self.reload(*clients)
        connection.sendall(body)
        head, _, text = read_all(connection).partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 "), head)
        return int(head.split()[1]), json.loads(text)

    def test_client_that_is_gone_when_the_body_ends_is_refused(self):
        delete = {"name": "wide"}
        status, problem = self.answer_after("/v1/deleteLimit", "admin", delete, self.shop)
        self.assertEqual((status, problem["code"]), (401, "UNAUTHENTICATED"))
        self.reload(self.shop, self.admin)
        status, listed = self.server.call("getLimit", {"name": "wide"}, token="admin")
        self.assertEqual(status, 200, listed)

    def test_right_that_is_gone_when_the_body_ends_is_refused(self):
        viewer = client("admin", "admin_view")
        status, problem = self.answer_after("/v1/resetKey", "admin", {"limit": "api", "key": "k"},
                                            self.shop, viewer)
        self.assertEqual((status, problem["code"]), (403, "PERMISSION_DENIED"))
        self.assertIn("may not admin_change", problem["detail"])
        self.assertIn("event=admin_call_refused", self.server.said())
        query_only = client("shop", "query", 'limits: "*"')
        acquire = {"charges": [{"limit": "api", "key": "k"}]}
        status, problem = self.answer_after("/v1/acquire", "shop", acquire, query_only)
        self.assertEqual(status, 403, problem)
        bucket = {"buckets": [{"limit": "api", "key": "k"}]}
        status, found = self.server.call("query", bucket, token="shop")
        self.assertEqual((status, found["buckets"][0]["remaining"]), (200, "5"))

    def test_json_of_the_rate_limit_service_needs_a_client_with_the_domain(self):
        self.use_json(f"--clients={self.clients}")
        ask = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "7"}]}]}
        self.reload(client("shop", "acquire", "domains: [shop]"), client("view", "admin_view"),
                    client("bank", "acquire", "domains: [bank]"))
        for token, expected, word in (("shop", 200, '"overallCode":"OK"'),
                                      ("bank", 400, "its domains are bank"),
                                      ("view", 403, "may not acquire"), ("none", 401, "token")):
            status, text = self.ask_json(ask, token)
            self.assertEqual(status, expected, (token, text))
            self.assertIn(word, text)
        status, text = self.ask_json(ask)
        self.assertEqual(status, 401, text)

    def test_json_is_refused_where_the_data_port_asks_for_certificates(self):
        cert, key = (os.path.join(self.folder.name, name) for name in ("cert.pem", "key.pem"))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.use_json(f"--tls_cert={cert}", f"--tls_key={key}", f"--tls_client_ca={cert}")
        status, text = self.ask_json({"domain": "shop"})
        self.assertEqual(status, 403, text)
        self.assertIn("the data port asks for client certificates", text)
        self.assertEqual(self.ask_json(None, path="/healthcheck")[0], 200)

    def use_json(self, *flags):
        """Starts another server, with the port of /json."""
        self.server.close()
        config = os.path.join(self.folder.name, "ratelimit.yaml")
        with open(config, "w") as file:
            file.write("domain: shop\ndescriptors:\n  - key: user\n"
                       "    rate_limit: { unit: year, requests_per_unit: 3 }\n")
        self.server = Server(SLUICED, f"--ratelimit_config={config}",
                             "--ratelimit_http_listen=127.0.0.1:0", *flags)

    def ask_json(self, message, token=None, path="/json"):
        address = self.server.ports["ratelimit_http"]
        connection = http.client.HTTPConnection(address, timeout=WAIT_S)
        self.addCleanup(connection.close)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        body = None if message is None else json.dumps(message)
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_overview_ends_when_its_right_is_gone(self):
        stream = self.send_head("/v1/overview", "admin", method="GET")
        self.assertIn(b"event: snapshot", read_until(stream, b"event: snapshot"))
        self.assertIn(b"event: second", read_until(stream, b"event: second"))
        self.reload(self.shop, client("admin", "acquire", 'limits: "*"'))
        rest = read_all(stream)
        self.assertTrue(rest.endswith(b"0\r\n\r\n"), rest[-200:])
        self.assertIn(b"event: error\ndata: {", rest)
        self.assertIn(b"may not admin_view", rest)

    def test_overview_counts_as_a_stream(self):
        stream = self.send_head("/v1/overview", "admin", method="GET")
        read_until(stream, b"event: snapshot")
        headers = {"Authorization": "Bearer admin"}
        status, _, text = self.server.request("GET", "/v1/overview", None, headers)
        self.assertEqual(status, 429, text)
        self.assertIn("max_streams: 1", text)
        stream.close()
        until = time.time() + WAIT_S
        while True:
            again = self.send_head("/v1/overview", "admin", method="GET")
            if read_until(again, b"\r\n\r\n").startswith(b"HTTP/1.1 200"):
                break
            self.assertLess(time.time(), until)
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
