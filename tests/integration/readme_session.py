#!/usr/bin/env python3
"""Runs the commands of the README's session against a real server and compares their output.

Durations depend on timing, so any duration equals any other. All other text must be equal.

usage: readme_session.py SOURCE_DIR BIN_DIR
"""
import os
import re
import signal
import subprocess
import sys
import tempfile

MARK = "<!-- tests/integration/readme_session.py"
DURATION = re.compile(r"\b\d+(\.\d+)?(ns|us|ms|s|m|h|d)(\d+(m|h|s))?\b")


def session(readme):
    """Returns [(command, expected output)] of the marked blocks."""
    steps = []
    for part in readme.split(MARK)[1:]:
        block = part.split("```console\n", 1)[1].split("```", 1)[0]
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def normal(text):
    return DURATION.sub("DURATION", re.sub(r" +", " ", text.strip()))


def main():
    source, binaries = sys.argv[1:3]
    with open(os.path.join(source, "README.md")) as file:
        steps = session(file.read())
    server = subprocess.Popen(
        [os.path.join(binaries, "sluiced"), "--limits=deploy/limits.example.yaml",
         "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"],
        cwd=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    failed = 0
    try:
        ready = dict(field.split("=", 1) for field in server.stdout.readline().split()[1:])
        env = {**os.environ, "SLUICE_SERVER": ready["data"], "SLUICE_ADMIN": ready["admin"]}
        with tempfile.TemporaryDirectory() as folder:
            # The session's commands expect a checkout that was built into build/.
            os.makedirs(os.path.join(folder, "build"))
            os.symlink(binaries, os.path.join(folder, "build", "bin"))
            os.symlink(os.path.join(source, "deploy"), os.path.join(folder, "deploy"))
            for command, expected in steps:
                # The server's HTTP port was picked.
                command = command.replace("localhost:7202", ready["http"])
                done = subprocess.run(command, shell=True, cwd=folder, env=env, timeout=30,
                                      text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                got = [normal(line) for line in done.stdout.splitlines()]
                want = [normal(line) for line in expected]
                if got != want:
                    failed += 1
                    print(f"$ {command}\n  README: {want}\n  now:    {got}")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
    print(f"{len(steps) - failed} passed, {failed} failed")
    return 1 if failed or not steps else 0


sys.exit(main())
