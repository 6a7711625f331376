#!/usr/bin/env python3
"""Checks that each test which docs/throttler.md names for a scenario exists: scenarios_test.py ROOT"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
text = (root / "docs/throttler.md").read_text()
section = text[text.index("\n## Scenarios\n"):]
named = re.findall(r"`(\w+)\.(\w+)`", "\n".join(
    line for line in section.splitlines() if line.startswith("| ")))
exist = set()
for source in (root / "tests").rglob("*.cc"):
    exist.update(re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", source.read_text()))
missing = [f"{suite}.{name}" for suite, name in named if (suite, name) not in exist]
if missing or len(named) < 40:
    sys.exit(f"{len(named)} tests are named; these do not exist: {', '.join(missing)}")
print(f"{len(named)} tests are named, and exist")
