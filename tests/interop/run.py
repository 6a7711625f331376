#!/usr/bin/env python3
"""Runs the interop scenarios with real clients of other languages against the real server.

Each client is a small program under tests/interop/LANGUAGE with stubs generated from our proto. A
language whose toolchain is not installed is reported as SKIPPED. Builds and downloads go to
build/interop.

usage: run.py [--build DIR] [LANGUAGE ...]
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

from common import HERE, PROTO, ROOT, Missing, Server, make_certificate, need, run
from common import build_go as build_go_program


def copy_sources(language, work):
    folder = os.path.join(work, language)
    shutil.copytree(os.path.join(HERE, language), folder, dirs_exist_ok=True)
    return folder


def build_go(work):
    return [build_go_program(work, "client")]


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
    return [python, os.path.join(folder, "client.py")]


def build_node(work):
    need("node", "npm")
    folder = copy_sources("node", work)
    run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder)
    return ["node", os.path.join(folder, "client.js"), PROTO]


def build_rust(work):
    need("cargo", "protoc")
    folder = copy_sources("rust", work)
    run(["cargo", "build", "--quiet"], cwd=folder, env={"SLUICE_PROTO_DIR": PROTO})
    return [os.path.join(folder, "target", "debug", "sluice-interop")]


def build_java(work):
    need("java", "mvn")
    folder = copy_sources("java", work)
    run(["mvn", "-q", "-B", "package", f"-Dsluice.proto={PROTO}"], cwd=folder)
    classpath = os.pathsep.join([os.path.join(folder, "target", "sluice-interop-0.jar"),
                                 os.path.join(folder, "target", "lib", "*")])
    return ["java", "-cp", classpath, "io.sluice.interop.Client"]


def build_cpp(_work):
    program = os.path.join(OPTIONS.build, "bin", "interop_cpp")
    if not os.path.exists(program):
        raise Missing("build/bin/interop_cpp was not built")
    return [program]


BUILDERS = {"cpp": build_cpp, "go": build_go, "python": build_python, "node": build_node,
            "rust": build_rust, "java": build_java}


def arguments(language, port, ca):
    address = ["localhost", port] if language == "java" else [f"localhost:{port}"]
    return address + ([ca] if ca else [])


def main():
    work = os.path.join(OPTIONS.build, "interop")
    os.makedirs(work, exist_ok=True)
    passed, failed, skipped = [], [], []
    with tempfile.TemporaryDirectory(prefix="sluice-interop-") as folder:
        make_certificate(folder)
        for language in OPTIONS.languages or BUILDERS:
            started = time.monotonic()
            try:
                program = BUILDERS[language](work)
            except Missing as missing:
                print(f"SKIPPED {language}: {missing}", flush=True)
                skipped.append(language)
                continue
            except (RuntimeError, subprocess.TimeoutExpired) as fault:
                print(f"FAILED {language}: {fault}", flush=True)
                failed.append(f"{language} (build)")
                continue
            print(f"built {language} in {time.monotonic() - started:.0f} s", flush=True)
            for ca in (None, f"{folder}/ca.pem"):
                name = f"{language} {'TLS' if ca else 'plaintext'}"
                server = Server(OPTIONS.build, folder, ca is not None)
                try:
                    result = subprocess.run(program + arguments(language, server.port, ca),
                                            timeout=90, text=True, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT)
                    good = result.returncode == 0
                    output = result.stdout
                except subprocess.TimeoutExpired as timeout:
                    good, output = False, f"timed out: {timeout.output}"
                finally:
                    server.stop()
                print(f"{'passed' if good else 'FAILED'} {name}", flush=True)
                if not good:
                    print(output)
                (passed if good else failed).append(name)
    print("ran: " + ", ".join(passed + failed) + "; not: " + (", ".join(skipped) or "none"))
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=", ".join(BUILDERS))
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
for language in OPTIONS.languages:
    if language not in BUILDERS:
        parser.error(f"no client is written in {language!r}; there are: {', '.join(BUILDERS)}")
sys.exit(main())
