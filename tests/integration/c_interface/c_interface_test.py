#!/usr/bin/env python3
"""Runs the C program and the ctypes example against a real server, and checks which symbols the
library exports.

usage: c_interface_test.py SOURCE_DIR BIN_DIR LIBRARY C_PROGRAM
"""
import os
import re
import signal
import subprocess
import sys
import tempfile

LIMITS = "limits: [{name: api, rate: 1/24h, burst: 2}, {name: wide, rate: 1/24h, burst: 1000}]\n"


def fail(text):
    sys.exit(f"c_interface_test: {text}")


def run(*command, env=None):
    done = subprocess.run(command, timeout=60, text=True, env={**os.environ, **(env or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.strip()


def check_symbols(source, library):
    """The library exports the functions of the header, with their version, and nothing else."""
    with open(os.path.join(source, "client/include/sluice/sluice.h")) as header:
        functions = set(re.findall(r"^[a-z].*?\b(sluice_\w+)\(", header.read(), re.MULTILINE))
    _, listing = run("nm", "-D", "--defined-only", library)
    symbols = {line.split()[-1] for line in listing.splitlines()} - {"SLUICE_1.0"}
    wanted = {f"{name}@@SLUICE_1.0" for name in functions}
    if symbols != wanted:
        fail(f"exported but not declared: {sorted(symbols - wanted)[:5]}; "
             f"declared but not exported: {sorted(wanted - symbols)}")


def main():
    source, binaries, library, program = sys.argv[1:5]
    check_symbols(source, library)
    with tempfile.TemporaryDirectory() as folder:
        limits = os.path.join(folder, "limits.yaml")
        with open(limits, "w") as file:
            file.write(LIMITS)
        server = subprocess.Popen(
            [os.path.join(binaries, "sluiced"), f"--limits={limits}", "--listen=127.0.0.1:0",
             "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        example = [sys.executable, os.path.join(source, "client/examples/ctypes_quickstart.py")]
        env = {"SLUICE_LIBRARY": library}
        try:
            ready = dict(word.split("=", 1) for word in server.stdout.readline().split()[1:])
            code, output = run(program, ready["data"])
            if code != 0:
                fail(f"the C program failed: {output}")
            for limit, wanted in (("api", "granted"), ("api", "granted"),
                                  ("api", r"denied; try again in [\d.]+ s"),
                                  ("no-such-limit", "error 5: .*no-such-limit.*")):
                _, output = run(*example, ready["data"], limit, "python", env=env)
                if not re.fullmatch(wanted, output):
                    fail(f"the example printed {output!r} for {limit}; wanted {wanted!r}")
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)
        code, output = run(*example, "localhost", "api", "python", env=env)
        if code != 1 or "cannot create the client" not in output:
            fail(f"the example printed {output!r} for a malformed address")
    print("as expected")


main()
