#!/usr/bin/env python3
"""Checks deploy/gateways with the real nginx, Caddy, HAProxy and Traefik, in front of a real sluiced
and a small application: requests pass and are denied, also with bodies and with a browser's headers;
and while Sluice has stopped or hangs, one path fails open and the other closed. (With Traefik both
fail closed.) Traefik is not in Debian; tests/interop/traefik.py builds it.

usage: gateways_test.py SOURCE_DIR BUILD_DIR [TEST ...]
Exits with 77 if none of the gateways is installed.
"""
import concurrent.futures
import http.client
import http.server
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
import unittest

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
SLUICED = os.path.join(BUILD, "bin", "sluiced")
GATEWAYS = os.path.join(SOURCE, "deploy", "gateways")
TRAEFIK = shutil.which("traefik") or os.path.join(BUILD, "interop", "traefik")
WAIT_S = 60  # Traefik gives up on Sluice after 30 s
# Nothing refills during the test.
LIMITS = """
limits:
  - { name: api, rate: 5/24h }
  - { name: login, rate: 5/24h }
"""
BROWSER = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site", "Cookie": "id=1",
           "Sluice-Limit": "unknown", "Sluice-Permits": "1000", "Sluice-Key": "another"}


def await_true(what, question):
    deadline = time.monotonic() + WAIT_S
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S} s for: {what}")
        time.sleep(0.02)
    return answer


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Application(http.server.ThreadingHTTPServer):
    """Answers with the body that it got; /forbidden and /broken with 403 and 500."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.requests = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            self.server.requests += 1
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response({"/forbidden": 403, "/broken": 500}.get(self.path, 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = handle_any

        def log_message(self, *_):
            pass

    def handle_error(self, *_):
        pass  # a gateway that closes its connections is none


class Sluice:
    def __init__(self, folder, port):
        self.port = port
        limits = os.path.join(folder, "limits.yaml")
        with open(limits, "w") as file:
            file.write(LIMITS)
        self.command = [SLUICED, f"--limits={limits}", "--listen=127.0.0.1:0",
                        "--admin_listen=127.0.0.1:0", f"--http_listen=127.0.0.1:{port}"]
        self.log = open(os.path.join(folder, "sluiced.log"), "a")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise AssertionError(f"sluiced is not ready: {line!r}")

    def stop(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        self.process.stdout.close()

    def close(self):
        self.stop()
        self.log.close()

    def hang(self):
        self.process.send_signal(signal.SIGSTOP)
        await_true("all threads stopped", lambda: set(self.thread_states()) == {"T"})

    def thread_states(self):
        tasks = f"/proc/{self.process.pid}/task"
        for thread in os.listdir(tasks):
            with open(os.path.join(tasks, thread, "stat")) as file:
                yield file.read().rsplit(")", 1)[1].split()[0]

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


class GatewayCases:
    """The cases, for each gateway; it starts on 127.0.0.1:`port`."""
    program = None

    install_it = "./dev deps installs it"

    def setUp(self):
        if not shutil.which(self.program):
            self.skipTest(f"{self.program} is not installed; {self.install_it}")
        folder = tempfile.TemporaryDirectory(prefix="sluice-gateways-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)  # nginx's worker is another user
        self.application = Application()
        self.addCleanup(self.application.server_close)
        self.addCleanup(self.application.shutdown)
        self.port, sluice_port, self.inner_port = free_ports(3)
        self.values = {"127.0.0.1:7202": f"127.0.0.1:{sluice_port}",
                       "127.0.0.1:7209": f"127.0.0.1:{self.inner_port}",
                       "127.0.0.1:8000": f"127.0.0.1:{self.port}",
                       "127.0.0.1:8080": f"127.0.0.1:{self.application.server_port}",
                       # A busy machine may need longer for an answer.
                       " 50ms": " 1s", " 100ms": " 1s", "timeout = 200": "timeout = 2000"}
        self.sluice = Sluice(self.folder, sluice_port)
        self.addCleanup(self.sluice.close)
        self.log = open(os.path.join(self.folder, "gateway.log"), "w+")
        self.addCleanup(self.log.close)
        self.gateway = subprocess.Popen(self.command(), cwd=self.folder, stdout=self.log,
                                        stderr=self.log)
        self.addCleanup(self.stop_gateway)
        await_true(self.program, self.listens)

    def stop_gateway(self):
        self.gateway.terminate()
        self.gateway.wait(WAIT_S)

    def listens(self):
        if self.gateway.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"{self.program} ended: {self.log.read()[-2000:]}")
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def install(self, path):
        """Copies a file of deploy/gateways, with the test's values; returns its path."""
        with open(os.path.join(GATEWAYS, path)) as file:
            text = re.sub("|".join(map(re.escape, self.values)),
                          lambda match: self.values[match[0]], file.read())
        to = os.path.join(self.folder, os.path.basename(path))
        with open(to, "w") as file:
            file.write(text)
        return to

    def ask(self, path, *, source="127.0.0.1", method="GET", body=None, **headers):
        """(status, headers, body) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S,
                                                source_address=(source, 0))
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value
                                                    for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def statuses(self, count, path, **request):
        return [self.ask(path, **request)[0] for _ in range(count)]

    def check_denied(self):
        before = self.application.requests
        status, headers, _ = self.ask("/")
        self.assertEqual(status, 429)
        self.assertGreater(int(headers["Retry-After"]), 0)
        self.assertIn("r=0", headers["RateLimit"].replace(" ", ""))
        self.assertEqual(self.application.requests, before)

    def test_passes_what_is_granted_and_denies_the_rest_with_429(self):
        status, headers, _ = self.ask("/")
        self.assertEqual(status, 200)
        self.assertIn('"api";r=4', headers["RateLimit"].replace(" ", ""))
        self.assertIn('"api";q=5', headers["RateLimit-Policy"].replace(" ", ""))
        self.assertEqual(self.statuses(4, "/"), [200] * 4)
        self.check_denied()

    def test_each_key_has_its_own_bucket(self):
        self.assertEqual(self.statuses(6, "/"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/", source="127.0.0.2"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/login/", X_Api_Key="a b"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/login/", X_Api_Key="a&limit=api"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/login/", X_Api_Key="\u00e9".encode()),
                         [200] * 5 + [429])
        self.check_key_that_is_not_utf8()
        self.assertEqual(self.statuses(6, "/login/"), [200] * 5 + [429], "no key: one bucket")

    def check_key_that_is_not_utf8(self):
        self.assertEqual(self.statuses(2, "/login/", X_Api_Key=b"\xff"), [503] * 2)

    def test_bodies_and_headers_reach_the_application_only(self):
        body = b"x" * 100_000
        for path in ("/", "/login/"):
            status, _, got = self.ask(path, method="POST", body=body, **BROWSER)
            self.assertEqual((status, got), (200, body), path)
        self.assertEqual(self.statuses(5, "/", **BROWSER), [200] * 4 + [429])

    def test_errors_of_the_application_pass_unchanged(self):
        self.assertEqual(self.ask("/forbidden")[0], 403)
        self.assertEqual(self.ask("/broken")[0], 500)
        self.assertEqual(self.application.requests, 2)

    def check_without_sluice(self):
        """Requests to each path, of buckets that are spent: one is open, one closed."""
        status, _, got = self.ask("/", method="POST", body=b"kept")
        self.assertEqual((status, got), (200, b"kept"))
        self.assertEqual(self.statuses(2, "/"), [200] * 2)
        before = self.application.requests
        self.assertEqual(self.statuses(2, "/login/", X_Api_Key="a"), [503] * 2)
        self.assertEqual(self.application.requests, before)

    def test_fails_open_or_closed_while_sluice_has_stopped(self):
        self.assertEqual(self.statuses(6, "/"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/login/", X_Api_Key="a"), [200] * 5 + [429])
        self.sluice.stop()
        self.check_without_sluice()
        self.sluice.start()
        # Its buckets are full again.
        await_true("an answer of Sluice", lambda: 429 in self.statuses(1, "/"))

    def test_fails_open_or_closed_while_sluice_hangs(self):
        self.assertEqual(self.statuses(6, "/"), [200] * 5 + [429])
        self.assertEqual(self.statuses(6, "/login/", X_Api_Key="a"), [200] * 5 + [429])
        self.sluice.hang()
        self.addCleanup(self.sluice.go_on)
        self.check_without_sluice()
        self.sluice.go_on()
        await_true("an answer of Sluice", lambda: 429 in self.statuses(1, "/"))


class NginxTest(GatewayCases, unittest.TestCase):
    program = "nginx"

    def command(self):
        main = os.path.join(self.folder, "main.conf")
        temporary = "".join(f"  {name}_temp_path {self.folder}/{name};\n" for name in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(main, "w") as file:
            file.write(f"pid {self.folder}/nginx.pid;\nworker_processes 1;\nevents {{}}\n"
                       f"http {{\n  access_log off;\n{temporary}"
                       f"  include {self.install('nginx/sluice.conf')};\n}}\n")
        return ["nginx", "-p", self.folder, "-c", main, "-e", "stderr", "-g", "daemon off;"]


class CaddyTest(GatewayCases, unittest.TestCase):
    program = "caddy"

    def command(self):
        return ["env", f"HOME={self.folder}", f"XDG_DATA_HOME={self.folder}",
                f"XDG_CONFIG_HOME={self.folder}", "caddy", "run", "--adapter", "caddyfile",
                "--config", self.install("caddy/Caddyfile")]


class HaproxyTest(GatewayCases, unittest.TestCase):
    program = "haproxy"

    def command(self):
        self.install("haproxy/sluice.lua")
        return ["haproxy", "-db", "-f", self.install("haproxy/haproxy.cfg")]


class TraefikTest(GatewayCases, unittest.TestCase):
    program = TRAEFIK
    install_it = "tests/interop/traefik.py builds it"

    def command(self):
        self.install("traefik/sluice.yaml")
        static = os.path.join(self.folder, "traefik.yaml")
        with open(static, "w") as file:
            file.write(f"entryPoints: {{ web: {{ address: '127.0.0.1:{self.port}' }} }}\n"
                       f"providers: {{ file: {{ filename: {self.folder}/sluice.yaml }} }}\n"
                       "global: { checkNewVersion: false, sendAnonymousUsage: false }\n")
        return [TRAEFIK, f"--configfile={static}"]

    def listens(self):
        # It listens before it has read its routes. The key is of no test, and the application does
        # not count the method.
        return (super().listens() and
                self.ask("/login/", method="OPTIONS", X_Api_Key="ready")[0] != 404)

    def check_key_that_is_not_utf8(self):
        # What Sluice answers, reaches the client.
        self.assertEqual(self.statuses(2, "/login/", X_Api_Key=b"\xff"), [400] * 2)

    def test_passes_what_is_granted_and_denies_the_rest_with_429(self):
        # Of a grant, no header of Sluice reaches the client.
        self.assertEqual(self.statuses(5, "/"), [200] * 5)
        self.check_denied()

    def check_without_sluice(self):
        before = self.application.requests
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            asked = [both.submit(self.ask, "/"), both.submit(self.ask, "/login/", X_Api_Key="a")]
            self.assertEqual([one.result()[0] for one in asked], [500] * 2)
        self.assertEqual(self.application.requests, before)


if __name__ == "__main__":
    if not any(shutil.which(one.program) for one in (NginxTest, CaddyTest, HaproxyTest,
                                                     TraefikTest)):
        print("SKIPPED: nginx, caddy and haproxy are not installed; ./dev deps installs them")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
