#!/usr/bin/env python3
"""Runs the property tests (ctest's label `property`) with more random histories of each property.

usage: run_properties.py BUILD TIMES JOBS

Each program gets a seed of its own. Of one that fails, prints the output and the line that runs the
same histories again.
"""
import concurrent.futures
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time

# RapidCheck's own.
DEFAULT_CASES = 100
# Of a program, for each of TIMES. One that takes longer has failed: it hangs.
MOST_SECONDS = 60


def tests_of(build):
    listed = subprocess.run(["ctest", "--test-dir", build, "-L", "property", "--show-only=json-v1"],
                            check=True, stdout=subprocess.PIPE, text=True)
    for test in json.loads(listed.stdout)["tests"]:
        properties = {one["name"]: one["value"] for one in test["properties"]}
        variables = dict(one.split("=", 1) for one in properties.get("ENVIRONMENT", []))
        yield test["name"], test["command"], properties["WORKING_DIRECTORY"], variables


def run(name, command, folder, variables, times):
    params = variables.get("RC_PARAMS", "")
    cases = re.search(r"max_success=(\d+)", params)
    params = [one for one in params.split() if not one.startswith("max_success=")]
    params += [f"max_success={int(cases[1] if cases else DEFAULT_CASES) * times}",
               f"seed={random.getrandbits(63)}"]
    variables["RC_PARAMS"] = " ".join(params)
    start = time.monotonic()
    try:
        ran = subprocess.run(command, cwd=folder, env={**os.environ, **variables},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             timeout=MOST_SECONDS * times)
        passed, output = ran.returncode == 0, ran.stdout
    except subprocess.TimeoutExpired as late:
        passed, output = False, (late.stdout or b"") + f"{late}\n".encode()
    print(f"{'passed' if passed else 'FAILED'} {time.monotonic() - start:7.0f} s  {name}", flush=True)
    if not passed:
        again = " ".join([f"{key}={shlex.quote(value)}" for key, value in variables.items()] +
                         [shlex.quote(word) for word in command])
        print(f"{output.decode(errors='replace')}\n"
              f"run it again: (cd {shlex.quote(folder)} && {again})", flush=True)
    return passed


def main():
    build, times, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tests = list(tests_of(build))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda test: run(*test, times), tests))
    print(f"{sum(results)} of {len(results)} programs passed, with {times} times as many histories")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
