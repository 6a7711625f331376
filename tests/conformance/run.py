#!/usr/bin/env python3
"""Runs h2spec and gRPC's interop client against our HTTP/2 and gRPC server.

Both are installed with `go install` into a cache folder (--cache, default
$XDG_CACHE_HOME/sluice/conformance or ~/.cache/sluice/conformance). Without Go, or without a network
and a cache, it says so and what did not run; that is no failure unless --require is given.

    tests/conformance/run.py --server build/bin/interop_server [--quick] [--require]
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOOLS = {
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible",
    "client": "google.golang.org/grpc/interop/client@v1.85.0",
}
CASES = [
    "empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong",
    "empty_stream", "timeout_on_sleeping_server", "cancel_after_begin",
    "cancel_after_first_response", "status_code_and_message", "special_status_message",
    "custom_metadata", "unimplemented_method", "unimplemented_service",
]


def tool(name, cache):
    """Returns the path of an installed tool, or None and the reason."""
    path = os.path.join(cache, "bin", name)
    if os.access(path, os.X_OK):
        return path, ""
    if shutil.which("go") is None:
        return None, "Go is not installed"
    os.makedirs(cache, exist_ok=True)
    env = dict(os.environ, GOBIN=os.path.join(cache, "bin"), GOFLAGS="-modcacherw",
               GOPATH=os.path.join(cache, "go"))
    done = subprocess.run(["go", "install", TOOLS[name]], env=env, capture_output=True, text=True,
                          timeout=900, check=False)
    if done.returncode != 0:
        return None, "go install failed: " + (done.stderr.strip().splitlines() or ["?"])[-1]
    return path, ""


class Server:
    def __init__(self, binary, args):
        self.process = subprocess.Popen([binary, "--listen=127.0.0.1:0"] + args,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().split()
        if len(line) != 2 or line[0] != "ready":
            raise SystemExit("the server did not start")
        self.port = line[1].rsplit(":", 1)[1]

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=20)


def certificate(folder):
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key,
                    "-out", cert], check=True, capture_output=True)
    return cert, key


def h2spec(path, server, tls, strict, timeout):
    command = [path, "-h", "127.0.0.1", "-p", server.port, "-o", str(timeout)]
    command += ["-t", "-k"] if tls else []
    command += ["--strict"] if strict else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    if not found:
        print(done.stdout[-2000:])
        return False, "no result"
    total, passed, skipped, failed = map(int, found.groups())
    good = passed == total and skipped == 0 and failed == 0
    if not good:
        print(done.stdout[done.stdout.find("Failures:"):])
    return good, f"{passed} of {total} passed, {skipped} skipped, {failed} failed"


def interop(path, server, tls, cert):
    failed = []
    for case in CASES:
        command = [path, "-server_host=127.0.0.1", "-server_port=" + server.port,
                   "-test_case=" + case]
        if tls:
            command += ["-use_tls=true", "-use_test_ca=true", "-ca_file=" + cert,
                        "-server_host_override=localhost"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            failed.append(case)
            print(f"{case}: {done.stderr[-500:]}")
    return not failed, f"{len(CASES) - len(failed)} of {len(CASES)} cases passed"


def main():
    default_cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or
                                 os.path.expanduser("~/.cache"), "sluice", "conformance")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="build/bin/interop_server")
    parser.add_argument("--cache", default=default_cache)
    parser.add_argument("--quick", action="store_true", help="h2spec with a time-out of 1 s")
    parser.add_argument("--require", action="store_true", help="fail if something could not run")
    options = parser.parse_args()

    tools = {}
    ran, not_run, failed = [], [], []
    for name in TOOLS:
        tools[name], why = tool(name, options.cache)
        if tools[name] is None:
            not_run.append(f"{name}: {why}")
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(folder)
        for tls in (False, True):
            kind = "TLS" if tls else "plaintext"
            server = Server(options.server,
                            [f"--tls_cert={cert}", f"--tls_key={key}"] if tls else [])
            results = []
            if tools["h2spec"]:
                for strict in (False, True):
                    name = "h2spec" + (" --strict" if strict else "")
                    results.append((name, h2spec(tools["h2spec"], server, tls, strict,
                                                 1 if options.quick else 2)))
            if tools["client"]:
                results.append(("gRPC interop client",
                                interop(tools["client"], server, tls, cert)))
            code = server.stop()
            if code != 0:
                failed.append(f"server, {kind}: exit code {code}")
            for name, (good, text) in results:
                line = f"{name}, {kind}: {text}"
                print(("ok    " if good else "FAIL  ") + line, flush=True)
                (ran if good else failed).append(line)
    for line in not_run:
        print("not run  " + line)
    if failed or (options.require and not_run):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
