"""The servers under attack, their clients, and the honest caller's process."""
import atexit
import functools
import glob
import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import grpc

from http2 import Connection, connect
from limits import LIMITS, limits_yaml, optional_fields

BIN = os.environ.get("SLUICE_BIN", "build/bin")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def compile_protos():
    """Compiles proto/sluice and Envoy's rate-limit service into a temporary folder; returns
    that."""
    if "SLUICE_PROTOS" in os.environ:  # compiled by the process that started this one
        return os.environ["SLUICE_PROTOS"]
    import grpc_tools
    from grpc_tools import protoc
    out = tempfile.mkdtemp(prefix="sluice_protos_")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    root = os.path.join(ROOT, "proto")
    files = glob.glob(f"{root}/sluice/**/*.proto", recursive=True)
    for folder in ("config/core", "extensions/common/ratelimit", "service/ratelimit", "type"):
        files += glob.glob(f"{root}/envoy/{folder}/v3/*.proto")
    include = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    if protoc.main(["", f"-I{root}", f"-I{include}", f"--python_out={out}",
                    f"--grpc_python_out={out}", *files]):
        sys.exit("protoc failed")
    os.environ["SLUICE_PROTOS"] = out
    return out


PROTOS = compile_protos()
sys.path.insert(0, PROTOS)
pb = importlib.import_module("sluice.v1.rate_limiter_pb2")
pb_grpc = importlib.import_module("sluice.v1.rate_limiter_pb2_grpc")
admin_pb = importlib.import_module("sluice.v1.admin_pb2")
admin_grpc = importlib.import_module("sluice.v1.admin_pb2_grpc")
rls_pb = importlib.import_module("envoy.service.ratelimit.v3.rls_pb2")
rls_grpc = importlib.import_module("envoy.service.ratelimit.v3.rls_pb2_grpc")


def process_tree_killer():
    """For Popen: the child is killed when this process dies."""
    import ctypes
    libc = ctypes.CDLL(None)

    def prepare():
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    return prepare


@functools.cache
def unknown_fields():
    """The optional fields of our limits that this server does not know yet."""
    unknown = set()
    for field in sorted(optional_fields()):
        users = [limit for limit in LIMITS.values() if field in dict(limit.fields)]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            needed = {name for limit in users for name in limit.charges}
            named = [LIMITS[name] for name in sorted(needed | {limit.name for limit in users})]
            file.write(limits_yaml(named, optional_fields() - {field}))
            file.flush()
            if subprocess.run([f"{BIN}/sluice", "check", file.name],
                              capture_output=True).returncode:
                unknown.add(field)
    return unknown


@functools.cache
def known_flags():
    return set(re.findall(r"--(\w+)", subprocess.run([f"{BIN}/sluiced", "--help"], text=True,
                                                     capture_output=True).stdout))


@functools.cache
def certificate():
    """A key and a certificate for localhost: the paths of both, in a folder that is removed at
    exit."""
    folder = tempfile.mkdtemp(prefix="sluice_tls_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    key, cert = f"{folder}/key.pem", f"{folder}/cert.pem"
    subprocess.run([
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert
    ],
                   check=True,
                   stderr=subprocess.DEVNULL)
    return key, cert


class Target:
    """Addresses of a running server, and clients for it."""

    def __init__(self, data, admin, http, pid, ca=None, redis=None, wall_offset_file=None,
                 ratelimit_http=None):
        self.data, self.admin, self.http = data, admin, http
        self.ratelimit_http = ratelimit_http  # None: it has no such port
        self.pid, self.ca, self.redis = pid, ca, redis
        self.wall_offset_file = wall_offset_file

    def facts(self):
        return {"data": self.data, "admin": self.admin, "http": self.http, "pid": self.pid,
                "ca": self.ca, "redis": self.redis, "wall_offset_file": self.wall_offset_file,
                "ratelimit_http": self.ratelimit_http}

    @functools.cached_property
    def tls(self):
        if not self.ca:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(["h2"])
        return context

    def connect(self, admin=False, **options):
        if admin:
            return Connection(self.admin, **options)
        return Connection(self.data, tls=self.tls, **options)

    def tcp(self, source="127.0.0.1"):
        return connect(self.data, source=source)

    def channel(self):
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1),
                   ("grpc.max_receive_message_length", 1 << 26),
                   ("grpc.ssl_target_name_override", "localhost")]
        if not self.ca:
            return grpc.insecure_channel(self.data, options=options[:2])
        with open(self.ca, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        return grpc.secure_channel(self.data, credentials, options=options)

    def stub(self):
        """A client with a connection of its own."""
        return pb_grpc.RateLimiterStub(self.channel())

    def stats(self):
        stub = admin_grpc.LimitAdminStub(grpc.insecure_channel(self.admin, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 1 << 26)]))
        return stub.GetStats(admin_pb.GetStatsRequest(), timeout=10)

    def memory_mb(self, field="VmRSS"):
        with open(f"/proc/{self.pid}/status") as file:
            return int(re.search(rf"{field}:\s+(\d+)", file.read())[1]) / 1024

    def cpu_s(self):
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def command_redis(self, line):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.redis)
            s.sendall(line.encode() + b"\r\n")
            return s.recv(1024)


class Refused(Exception):
    """The server did not start. The text is what it wrote."""


class Server(Target):
    """A server of its own, on free loopback ports, with the limits of limits.py."""

    def __init__(self, *flags, threads=1, tls=False, redis=None, env=None, core=None,
                 read_stderr=True, wall_offset_file=None):
        self.limits = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.limits.write(limits_yaml(unknown=unknown_fields()))
        self.limits.flush()
        self.log = tempfile.NamedTemporaryFile("w+")
        # Nothing reads this pipe: it is full after 64 KiB.
        self._stderr_pipe = None if read_stderr else os.pipe()
        key, ca = certificate() if tls else (None, None)
        more = [f"--tls_cert={ca}", f"--tls_key={key}"] if tls else []
        if redis:
            more.append(f"--store=unix://{redis}")
        die_with_us = process_tree_killer()

        def prepare():
            die_with_us()
            if core is not None:
                os.sched_setaffinity(0, {core})

        self.process = subprocess.Popen([
            f"{BIN}/sluiced", f"--limits={self.limits.name}", f"--threads={threads}",
            "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
            "--http_listen=127.0.0.1:0", *more, *flags
        ],
                                        stdout=subprocess.PIPE,
                                        text=True,
                                        env={
                                            **os.environ,
                                            **(env or {})
                                        },
                                        preexec_fn=prepare,
                                        stderr=self.log if read_stderr else self._stderr_pipe[1])
        atexit.register(self.stop)
        ready = select.select([self.process.stdout], [], [],
                              15)[0] and self.process.stdout.readline()
        if not ready or not ready.startswith("ready"):
            self.stop()
            raise Refused(f"the server did not start: {self.log_text()[-200:]}")
        ports = dict(re.findall(r"(\w+)=(\S+)", ready))
        super().__init__(ports["data"], ports["admin"], ports["http"], self.process.pid, ca,
                         redis, wall_offset_file, ports.get("ratelimit_http"))

    def fill_stderr(self):
        """Fills the pipe, which nothing reads."""
        os.set_blocking(self._stderr_pipe[1], False)
        try:
            while True:
                os.write(self._stderr_pipe[1], bytes(4096))
        except BlockingIOError:
            pass
        os.set_blocking(self._stderr_pipe[1], True)

    def log_text(self):
        with open(self.log.name) as file:
            return file.read().strip()

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class IdleProgram:
    """See idle_connections.py."""

    def __init__(self, target, source, count, unread):
        options = {"address": target.data, "source": source, "count": count, "unread": unread,
                   "ca": target.ca}
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "idle_connections.py"), json.dumps(options)],
            stdout=subprocess.PIPE, text=True, preexec_fn=process_tree_killer())
        atexit.register(self.process.kill)

    def connections(self):
        """How many it has, once it has them."""
        return int(self.process.stdout.readline())


class HonestCaller:
    """See honest_caller.py. The limit should hold permits for all its calls and hardly refill."""

    def __init__(self, target, timeout_s=10, batch=0, gzip=False):
        options = {
            "address": target.data,
            "limit": "honest",
            "timeout_s": timeout_s,
            "ca": target.ca,
            "batch": batch,
            "gzip": gzip
        }
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "honest_caller.py"), json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": PROTOS}, preexec_fn=process_tree_killer())
        atexit.register(self.process.kill)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the honest caller could not call before the attack")

    def begin(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self):
        """What it saw: p50, p99, max (ms), calls, failed, denied, lost."""
        self.process.stdin.close()
        seen = json.loads(self.process.stdout.read())
        self.process.wait()
        return seen

    def watch(self, for_s):
        """Calls for so long, alone."""
        self.begin()
        time.sleep(for_s)
        return self.end()


class Redis:
    """A redis-server of its own, on a Unix socket."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice_redis_")
        self.path = os.path.join(self.folder.name, "redis.sock")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "",
             "--dir", self.folder.name],
            stdout=subprocess.DEVNULL, preexec_fn=process_tree_killer())
        atexit.register(lambda: (self.process.kill(), self.process.wait()))
        until = time.monotonic() + 5
        while not os.path.exists(self.path) and time.monotonic() < until:
            time.sleep(0.05)
