"""The real sluiced, and requests to its HTTP port, for the tests of this folder."""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile

WAIT_S = 60

LIMITS = """
limits:
  - { name: api, rate: 1/h, burst: 5, charges: [overall] }
  - { name: overall, rate: 5000/s }
  - { name: wide, rate: 1000000/s }
  - { name: slow, rate: 1/10s, burst: 1 }
  - { name: jobs, algorithm: concurrency, permits: 5 }
  - { name: job_calls, rate: 5/h, charges: [jobs] }
  - { name: smuggled, rate: 1000000/s }
"""


class Server:
    """sluiced with the store in memory. Ports are picked. Stop it with close."""

    def __init__(self, program, *flags, limits=LIMITS):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-http-test-")
        path = self.write("limits.yaml", limits)
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen(
            [program, f"--limits={path}", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0", "--drain_notice=0s", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.wait(WAIT_S)
            said = self.said()
            self.close()
            raise AssertionError(f"it said {line!r} and: {said}")
        self.ports = dict(field.split("=", 1) for field in line.split()[1:])
        self.http = self.ports["http"]
        self.port = int(self.http.rsplit(":", 1)[1])

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def close(self):
        """Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
        return code

    # ---- Requests, each over a connection of its own.
    def request(self, method, target, body=None, headers=None):
        """Returns (status, headers with names in lower case, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, target, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return response.status, names, response.read().decode()
        finally:
            connection.close()

    def call(self, method, message=None, token=None, **headers):
        """A JSON call. Returns (status, document)."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = message if isinstance(message, str) else json.dumps(message or {})
        status, names, text = self.request("POST", f"/v1/{method}", body, headers)
        return status, json.loads(text)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def granted(self, limit):
        """How many charges on the limit were granted since the start."""
        status, stats = self.call("getStats")
        assert status == 200, stats
        return sum(int(one["granted"]) for one in stats["limits"] if one["limit"] == limit)


def read_until(connection, mark, most=1 << 20):
    """What arrives, up to and with `mark`; less, if the peer ends first."""
    data = b""
    while mark not in data and len(data) < most:
        try:
            piece = connection.recv(4096)
        except ConnectionError:
            break
        if not piece:
            break
        data += piece
    return data


def read_all(connection):
    """What arrives until the peer ends."""
    data = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionError:
            return data
        if not piece:
            return data
        data += piece
