#!/usr/bin/env python3
"""run_shards.py COUNT PROGRAM [ARGUMENT...]: runs a GoogleTest program as COUNT processes at once.

Each process runs its share of the test cases. For tests that wait more than they compute.
Prints the output of each shard, and exits with 1 if one failed.
"""
import os
import subprocess
import sys
import tempfile

count, command = int(sys.argv[1]), sys.argv[2:]
shards = []
for index in range(count):
    output = tempfile.TemporaryFile()
    environment = os.environ | {"GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(index)}
    shards.append((subprocess.Popen(command, stdout=output, stderr=output, env=environment), output))
failed = False
for process, output in shards:
    failed |= process.wait() != 0
    output.seek(0)
    sys.stdout.buffer.write(output.read())
sys.exit(1 if failed else 0)
