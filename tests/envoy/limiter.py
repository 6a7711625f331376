"""Starts a rate-limit service that reads the environment of envoyproxy/ratelimit."""
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import yaml

WAIT_S = 60


def free_port():
    """A port that is free now; the environment cannot ask for any free one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_true(what, question, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while not (answer := question()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for: {what}")
        time.sleep(0.02)
    return answer


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        self.process = subprocess.Popen(
            [shutil.which("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
             "--save", "", "--appendonly", "no", "--dir", folder],
            stdout=subprocess.DEVNULL)
        await_true("redis-server", self.is_up)

    def is_up(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.kill()
        self.process.wait(WAIT_S)


class Runtime:
    """A runtime folder whose configuration changes by one rename."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0
        os.makedirs(folder, exist_ok=True)

    def publish(self, files):
        """Replaces the configuration by these parsed YAML files."""
        self.count += 1
        root = f"{self.folder}/{os.getpid()}-{self.count}"
        os.makedirs(f"{root}/ratelimit/config")
        for i, file in enumerate(files):
            with open(f"{root}/ratelimit/config/file{i}.yaml", "w") as out:
                yaml.safe_dump(file, out, sort_keys=False, allow_unicode=True)
        old = os.path.realpath(f"{self.folder}/current")
        os.symlink(root, f"{self.folder}/next")
        os.rename(f"{self.folder}/next", f"{self.folder}/current")
        if old != os.path.realpath(f"{self.folder}/current"):
            shutil.rmtree(old, ignore_errors=True)


def command_of(options):
    """--limiter, with its flags, or the program of the build folder."""
    if options.limiter:
        return shlex.split(options.limiter)
    return [os.path.join(options.build, "bin", "ratelimit")]


class Limiter:
    """One process on loopback. With `redis` its counters are there."""

    def __init__(self, program, folder, runtime, redis=None, **variables):
        self.command = [program] if isinstance(program, str) else program
        self.folder = folder
        self.grpc_port, self.http_port, self.debug_port = (free_port() for _ in range(3))
        self.environment = {
            **os.environ, "HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1", "DEBUG_HOST": "127.0.0.1",
            "GRPC_PORT": str(self.grpc_port), "PORT": str(self.http_port),
            "DEBUG_PORT": str(self.debug_port), "USE_STATSD": "false", "DISABLE_STATS": "true",
            "LOG_LEVEL": "warn",
            "RUNTIME_ROOT": f"{runtime.folder}/current", "RUNTIME_SUBDIRECTORY": "ratelimit"}
        if redis:
            self.environment |= {"REDIS_SOCKET_TYPE": "tcp",
                                 "REDIS_URL": f"127.0.0.1:{redis.port}"}
        self.environment |= variables
        self.process = None
        self.start()

    def start(self):
        with open(f"{self.folder}/limiter.log", "a") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=log,
                                            stderr=log)
        await_true(f"{self.command}; see {self.folder}/limiter.log", self.is_healthy)

    def is_healthy(self):
        if self.process.poll() is not None:
            with open(f"{self.folder}/limiter.log") as log:
                raise AssertionError(f"{self.command} ended: {log.read()[-3000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthcheck") as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def drain(self):
        self.process.send_signal(signal.SIGTERM)

    def hang(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)
