#!/usr/bin/env python3
"""Builds Traefik, which is not in Debian, for tests/integration/gateways_test.py, into
build/interop/traefik. Takes minutes the first time.

usage: traefik.py [--build DIR]
"""
import argparse
import json
import os
import subprocess
import sys

import common

# The newest version that builds as it is: newer ones need modules that are not in their archive.
MODULE = "github.com/traefik/traefik/v3@v3.6.12"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"), help="build folder")
    program = os.path.join(os.path.abspath(parser.parse_args().build), "interop", "traefik")
    if os.path.exists(program):
        return 0
    try:
        common.need("go")
    except common.Missing as missing:
        print(f"SKIPPED traefik: {missing}")
        return 0
    found = subprocess.run(["go", "mod", "download", "-json", MODULE], text=True,
                           stdout=subprocess.PIPE, check=False)
    if found.returncode != 0:
        print(f"SKIPPED traefik: {MODULE} cannot be downloaded: {found.stdout}")
        return 0
    common.run(["go", "build", "-o", program, "./cmd/traefik"], cwd=json.loads(found.stdout)["Dir"],
               env={"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -trimpath"})
    print(f"built {program}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
