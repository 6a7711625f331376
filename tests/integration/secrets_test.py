#!/usr/bin/env python3
"""Checks that secrets of sluiced appear in no log, no audit log, no answer, no argument and no core
dump: the admin token, the password of Redis, the token of a client, the key of TLS.

usage: secrets_test.py BIN_DIR
Exits with 77 if redis-server or openssl is not here.
"""
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

SLUICED, SLUICE = (os.path.join(os.path.abspath(sys.argv[1]), name) for name in ("sluiced", "sluice"))
WAIT_S = 30
MARK = "kr7Pq"  # in each secret but the key
ADMIN_TOKEN = f"{MARK}-admin-token-bWJtWbWvYQ"
CLIENT_TOKEN = f"{MARK}-client-token-9fJxUzTnEw"
PASSWORD = f"{MARK}-password-5hVdXsRmLo"
LIMITS = "limits: [{name: api, rate: 1/h}]\n"
CLIENTS = """
clients:
  - { name: app, token_sha256: %s, limits: [api], calls: [acquire, query] }
"""


def await_true(what, check):
    deadline = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.01)


def dumps_core(process):
    """Whether the kernel dumps the process when it crashes. The limit of dumps is lifted, since the
    kernel does not ask it either where core_pattern names a program."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_CORE, (hard, hard))
    process.send_signal(signal.SIGABRT)
    status = os.waitpid(process.pid, 0)[1]
    process.returncode = -os.WTERMSIG(status)
    assert process.returncode == -signal.SIGABRT, process.returncode
    return os.WCOREDUMP(status)


class SecretsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-secrets-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.processes = 0
        self.make_certificate("cert.pem", "key.pem")
        self.write("token", ADMIN_TOKEN)
        self.write("client", CLIENT_TOKEN)
        self.write("limits.yaml", LIMITS)
        digest = subprocess.run(["openssl", "dgst", "-sha256", "-r", self.path("client")], check=True,
                                stdout=subprocess.PIPE, text=True).stdout.split()[0]
        self.clients = CLIENTS % digest
        self.write("clients.yaml", self.clients)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), errors="replace") as file:
            return file.read()

    def write(self, name, text):
        with open(self.path(name), "w", opener=lambda *one: os.open(*one, mode=0o600)) as file:
            file.write(text)

    def make_certificate(self, certificate, key):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", self.path(key), "-out", self.path(certificate)],
                       check=True, stderr=subprocess.DEVNULL)

    def start(self, command, **more):
        """Its stdout and stderr are the files outN and errN."""
        self.processes += 1
        out, err = (open(self.path(f"{one}{self.processes}"), "w") for one in ("out", "err"))
        process = subprocess.Popen(command, stdout=out, stderr=err, **more)

        def stop():
            if process.returncode is None:
                process.kill()
                process.wait(WAIT_S)
            out.close()
            err.close()
        self.addCleanup(stop)
        return process

    def start_redis(self, password):
        socket = self.path("redis.sock")
        redis = self.start(["redis-server", "--port", "0", "--unixsocket", socket, "--requirepass",
                            password, "--save", "", "--dir", self.folder])
        await_true("Redis", lambda: os.path.exists(socket))
        return redis

    def start_server(self, *flags):
        server = self.start(
            [SLUICED, f"--limits={self.path('limits.yaml')}", "--listen=127.0.0.1:0",
             "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--metrics_listen=127.0.0.1:0", *flags], cwd=self.folder)
        name = f"out{self.processes}"
        await_true("the server", lambda: self.read(name).endswith("\n") or server.poll() is not None)
        self.assertIsNone(server.poll(), self.read(f"err{self.processes}"))
        self.ports = dict(one.split("=", 1) for one in self.read(name).split()[1:])
        return server

    def sluice(self, *arguments, token=None):
        """What the command prints."""
        port = self.ports["data"].rsplit(":", 1)[1]
        admin = self.ports["admin"].rsplit(":", 1)[1]
        command = [SLUICE, f"--server=localhost:{port}", f"--admin=localhost:{admin}",
                   f"--tls-ca={self.path('cert.pem')}", "--deadline=20s"]
        if token:
            self.write("sent", token)
            command.append(f"--token-file={self.path('sent')}")
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=WAIT_S)
        return done.stdout

    def http(self, path, token=None, body=None):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(
            f"https://localhost:{self.ports['http'].rsplit(':', 1)[1]}{path}", headers=headers,
            data=None if body is None else json.dumps(body).encode())
        if body is not None:
            request.add_header("content-type", "application/json")
        context = ssl.create_default_context(cafile=self.path("cert.pem"))
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def logged(self, *events):
        for event in events:
            await_true(event, lambda: re.search(f"event={event} ", self.read(self.log)))

    def reload(self, server, name, text, event):
        self.write(name, text)
        server.send_signal(signal.SIGHUP)
        self.logged(event)

    def test_are_in_no_log_no_answer_and_no_argument(self):
        redis = self.start_redis(PASSWORD)
        tls = [f"--{port}tls_{kind}={self.path(kind + '.pem')}" for port in ("", "admin_", "http_")
               for kind in ("cert", "key")]
        server = self.start_server(
            f"--store=unix://default:{PASSWORD}@{self.path('redis.sock')}", "--redis_budget=5s",
            f"--admin_token_file={self.path('token')}", f"--clients={self.path('clients.yaml')}",
            f"--audit_log={self.path('audit.json')}", *tls)
        self.log = f"err{self.processes}"
        with open(f"/proc/{server.pid}/cmdline") as file:
            arguments = file.read()
        self.assertIn("--store=unix://default:***", arguments)
        answers = []

        def answered(text, wanted):
            self.assertRegex(text, wanted)
            answers.append(text)
        # Calls that are right, and calls with tokens that are nearly right.
        answered(self.sluice("acquire", "api", "k"), "UNAUTHENTICATED")
        answered(self.sluice("limits", "put", "new", "--rate", "5/h", token=ADMIN_TOKEN), "added")
        answered(self.sluice("limits", "put", "new", "--rate", "6/h", token=ADMIN_TOKEN[:-1]),
                 "UNAUTHENTICATED")
        answered(self.sluice("limits", "put", "new", "--rate", "0/h", token=ADMIN_TOKEN),
                 "INVALID_ARGUMENT")
        charges = {"charges": [{"limit": "api", "key": "h"}]}
        for path, token, body, status in (
                ("/v1/acquire", CLIENT_TOKEN, charges, 200), ("/v1/acquire", ADMIN_TOKEN, {}, 403),
                ("/v1/acquire", CLIENT_TOKEN + "x", charges, 401), ("/v1/listLimits", ADMIN_TOKEN, {}, 200),
                ("/v1/listLimits", CLIENT_TOKEN, {}, 403),
                ("/v1/listLimits", ADMIN_TOKEN + "x", {}, 401), ("/v1/none", ADMIN_TOKEN, {}, 404)):
            code, text = self.http(path, token, body)
            self.assertEqual(code, status, (path, text))
            answers.append(text)
        with urllib.request.urlopen(f"http://{self.ports['metrics']}/metrics", timeout=WAIT_S) as page:
            answers.append(page.read().decode())
        # Files that are wrong: a token in place of its digest, a torn key, a short token.
        self.reload(server, "clients.yaml", CLIENTS % CLIENT_TOKEN, "clients_not_reloaded")
        key = self.read("key.pem")
        self.reload(server, "key.pem", key[:len(key) // 2], "certificates_not_reloaded")
        self.reload(server, "token", f"{MARK}-short", "admin_token_not_reloaded")
        # Redis takes the password no more.
        redis.kill()
        redis.wait(WAIT_S)
        os.unlink(self.path("redis.sock"))
        self.start_redis(PASSWORD[::-1])
        code, text = self.http("/v1/acquire", CLIENT_TOKEN, charges)
        self.assertEqual(code, 503, text)
        answers.append(text)
        self.logged("redis_connect")
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(WAIT_S), 0)

        audit = self.read("audit.json")
        self.assertIn('"call":"PutLimit"', audit)
        self.assertIn('"outcome":"UNAUTHENTICATED"', audit)
        secrets = [MARK, *[line for line in key.splitlines() if len(line) > 30 and "-" not in line]]
        self.assertGreater(len(secrets), 10)
        for where, text in (("the arguments", arguments), ("the audit log", audit),
                            ("the log", self.read(self.log)), *[("an answer", one) for one in answers]):
            for secret in secrets:
                self.assertNotIn(secret, text, where)

    def test_are_in_no_error_of_the_start(self):
        for flags in ((f"--store=redis://node:{PASSWORD}@127.0.0.1:x",),
                      (f"--store=redis://node:{PASSWORD}@127.0.0.1:6379/none",),
                      (f"--store=unix://node:{PASSWORD}@relative",),
                      (f"--store=redis-sentinel://:{PASSWORD}@127.0.0.1?sentinel_password={PASSWORD}",),
                      (f"--admin_token_file={self.path('token')}", "--admin_tls_cert=/none"),
                      (f"--tls_cert={self.path('key.pem')}", f"--tls_key={self.path('token')}")):
            done = subprocess.run([SLUICED, f"--limits={self.path('limits.yaml')}", *flags],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=WAIT_S)
            self.assertEqual(done.returncode, 2, (flags, done.stdout))
            key = self.read("key.pem").splitlines()
            for secret in (MARK, key[1], key[-2]):
                self.assertNotIn(secret, done.stdout, flags)

    def test_crash_leaves_no_core_dump(self):
        other = self.start(["sleep", "60"], cwd=self.folder)
        if not dumps_core(other):
            self.skipTest("this machine writes no core dumps")
        server = self.start_server()
        self.assertFalse(dumps_core(server))


if __name__ == "__main__":
    if not shutil.which("redis-server") or not shutil.which("openssl"):
        print("SKIPPED: redis-server or openssl is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
