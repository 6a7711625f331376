#!/usr/bin/env python3
"""Links our client into a program that has an Abseil of its own, of another version, and runs it.

Abseil's inline namespaces, which have the version in their names, keep the two apart. The other
version comes with the npm package re2, which has Abseil's sources. Checks also which libraries the
client brings into a program.

usage: own_abseil.py [--build DIR]
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

import common

PACKAGE = "re2@1.21.4"
# What StrCat and errors of Abseil need.
SOURCES = """
base/internal/raw_logging base/internal/throw_delegate base/log_severity numeric/int128
strings/ascii strings/charconv strings/internal/charconv_bigint strings/internal/charconv_parse
strings/internal/memutil strings/match strings/numbers strings/str_cat
"""
# OpenSSL, what Abseil throws exceptions with, and the compiler's own.
ALLOWED = r"lib(ssl|crypto|absl_throw_delegate|absl_raw_logging_internal|stdc\+\+|m|gcc_s|c)\.so"


def output(command, env=None):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE,
                          env={**os.environ, **(env or {})}).stdout


def build(folder):
    """Builds the program with its own Abseil and the installed client. Returns its path."""
    common.need("npm", "pkg-config", "g++", "nm", "ldd")
    work = os.path.join(OPTIONS.build, "interop", "own-abseil")
    vendor = os.path.join(work, "package", "vendor", "abseil-cpp")
    if not os.path.exists(vendor):
        os.makedirs(work, exist_ok=True)
        try:
            common.run(["npm", "pack", "--silent", PACKAGE], cwd=work)
        except RuntimeError as fault:
            raise common.Missing(f"{PACKAGE} cannot be downloaded: {fault}")
        common.run(["tar", "xzf", f"{PACKAGE.replace('@', '-')}.tgz",
                    "package/vendor/abseil-cpp/absl"], cwd=work)
    prefix = os.path.join(folder, "prefix")
    common.run(["cmake", "--install", OPTIONS.build, "--prefix", prefix, "--component", "client"])
    packages = next(path for path, _, names in os.walk(prefix) if "sluice-client.pc" in names)
    flags = output(["pkg-config", "--cflags", "--libs", "sluice-client"],
                   {"PKG_CONFIG_PATH": packages}).split()
    program = os.path.join(folder, "program")
    common.run(["g++", "-std=c++20", "-O1", f"-I{vendor}", "-o", program,
                os.path.join(common.HERE, "cpp", "own_abseil.cc"),
                *(f"{vendor}/absl/{source}.cc" for source in SOURCES.split()), *flags])
    return program


def faults(program, server):
    versions = set(re.findall(r"absl::(\w+)::", output(["nm", "-C", program])))
    if len(versions) != 2:
        yield f"the program has the versions {versions} of Abseil, not two"
    libraries = re.findall(r"^\s*(lib\S+) => ", output(["ldd", program]), re.M)
    for library in libraries:
        if not re.match(ALLOWED, library):
            yield f"the program needs {library}"
    result = subprocess.run([program, f"127.0.0.1:{server.port}"], text=True, timeout=60,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        yield f"the program printed {result.stdout}"
    print(f"versions of Abseil: {', '.join(sorted(versions))}; needs {', '.join(libraries)}")


def main():
    with tempfile.TemporaryDirectory(prefix="sluice-abseil-") as folder:
        try:
            program = build(folder)
        except common.Missing as missing:
            print(f"SKIPPED a program with its own Abseil: {missing}")
            return 0
        server = common.Server(OPTIONS.build, folder)
        try:
            found = list(faults(program, server))
        finally:
            server.stop()
    for fault in found:
        print(fault)
    print(f"{'FAILED' if found else 'passed'} a program with its own Abseil")
    return 1 if found else 0


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(common.ROOT, "build"), help="build folder")
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
sys.exit(main())
