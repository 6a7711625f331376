#!/usr/bin/env python3
"""Runs the interop scenarios with real clients of other languages against the real server.

Each client is a small program under tests/interop/LANGUAGE with stubs generated from our proto. A
language whose toolchain is not installed is reported as SKIPPED. Builds and downloads go to
build/interop.

usage: run.py [--build DIR] [LANGUAGE ...]
"""
import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from common import HERE, PROTO, ROOT, Missing, Report, Server, make_certificate, need, run
from common import build_go as build_go_program, build_java as build_java_classes


@dataclass(frozen=True)
class Programs:
    """The programs of one language, as commands."""
    client: list[str]  # runs the scenarios; its arguments follow
    quickstart: list[str] | None = None  # the program that docs/languages.md shows


def copy_sources(language, work):
    folder = os.path.join(work, language)
    shutil.copytree(os.path.join(HERE, language), folder, dirs_exist_ok=True)
    return folder


def build_go(work):
    return Programs(client=[build_go_program(work, "client")],
                    quickstart=[build_go_program(work, "quickstart")])


def build_python(work):
    need("python3")
    folder = copy_sources("python", work)
    venv = os.path.join(work, "python-venv")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python):
        run(["python3", "-m", "venv", venv])
    run([python, "-m", "pip", "install", "--quiet", "-r", os.path.join(folder, "requirements.txt")])
    run([python, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={folder}",
         f"--grpc_python_out={folder}", "sluice/v1/rate_limiter.proto"])
    return Programs(client=[python, os.path.join(folder, "client.py")],
                    quickstart=[python, os.path.join(folder, "quickstart.py")])


def build_node(work):
    need("node", "npm")
    folder = copy_sources("node", work)
    run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder)
    return Programs(client=["node", os.path.join(folder, "client.js"), PROTO],
                    quickstart=["node", os.path.join(folder, "quickstart.js")])


def build_rust(work):
    need("cargo", "protoc")
    folder = copy_sources("rust", work)
    run(["cargo", "build", "--quiet"], cwd=folder, env={"SLUICE_PROTO_DIR": PROTO})
    binaries = os.path.join(folder, "target", "debug")
    return Programs(client=[os.path.join(binaries, "sluice-interop")],
                    quickstart=[os.path.join(binaries, "quickstart")])


def build_java(work):
    command = build_java_classes(work)
    return Programs(client=command("Client"), quickstart=command("Quickstart"))


def build_cpp(_work):
    program = os.path.join(OPTIONS.build, "bin", "interop_cpp")
    if not os.path.exists(program):
        raise Missing("build/bin/interop_cpp was not built")
    return Programs(client=[program])


BUILDERS = {"cpp": build_cpp, "go": build_go, "python": build_python, "node": build_node,
            "rust": build_rust, "java": build_java}


def arguments(language, port, ca):
    address = ["localhost", port] if language == "java" else [f"localhost:{port}"]
    return address + ([ca] if ca else [])


def quickstart_faults(program, folder):
    """What the program of docs/languages.md prints that it should not."""
    server = Server(OPTIONS.build, folder)
    env = {**os.environ, "SLUICE_SERVER": f"127.0.0.1:{server.port}", "SLUICE_PROTO_DIR": PROTO}

    def fault(limit, code, wanted):
        result = subprocess.run(program + [limit, "user:42"], env=env, timeout=30, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode == code and re.fullmatch(wanted, result.stdout.strip(), re.I | re.S):
            return []
        return [f"{limit}: wanted {code} and {wanted!r}; exit code {result.returncode}, output: "
                f"{result.stdout}"]

    try:
        faults = fault("once", 0, "granted; 0 left")
        faults += fault("once", 1, r"denied; try again in (3600|35\d\d) s")
        faults += fault("no-such-limit", 3, "error: not_?found: .*no-such-limit.*")
    finally:
        server.stop()
    return faults + fault("once", 3, "error: unavailable: .*")


def main():
    work = os.path.join(OPTIONS.build, "interop")
    os.makedirs(work, exist_ok=True)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="sluice-interop-") as folder:
        make_certificate(folder)
        for language in OPTIONS.languages or BUILDERS:
            started = time.monotonic()
            programs = report.build(language, functools.partial(BUILDERS[language], work))
            if programs is None:
                continue
            print(f"built {language} in {time.monotonic() - started:.0f} s", flush=True)
            for ca in (None, f"{folder}/ca.pem"):
                name = f"{language} {'TLS' if ca else 'plaintext'}"
                server = Server(OPTIONS.build, folder, ca is not None)
                try:
                    result = subprocess.run(programs.client + arguments(language, server.port, ca),
                                            timeout=90, text=True, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT)
                    good = result.returncode == 0
                    output = result.stdout
                except subprocess.TimeoutExpired as timeout:
                    good, output = False, f"timed out: {timeout.output}"
                finally:
                    server.stop()
                report.add(name, good, "" if good else output)
            if programs.quickstart:
                faults = quickstart_faults(programs.quickstart, folder)
                report.add(f"{language} quickstart", not faults, "\n".join(faults))
    return report.end()


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=", ".join(BUILDERS))
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
for language in OPTIONS.languages:
    if language not in BUILDERS:
        parser.error(f"no client is written in {language!r}; there are: {', '.join(BUILDERS)}")
sys.exit(main())
