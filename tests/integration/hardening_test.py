#!/usr/bin/env python3
"""Checks that the programs and the shared library have the hardening that common/build.cmake sets.

usage: hardening_test.py FILE...
"""
import re
import subprocess
import sys
import unittest

FILES = sys.argv[1:]


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


class HardeningTest(unittest.TestCase):
    def each_matches(self, option, pattern):
        self.assertTrue(FILES)
        for path in FILES:
            self.assertTrue(re.search(pattern, readelf(option, path), re.MULTILINE),
                            f"{path}: readelf {option} shows no {pattern}")

    def test_is_loaded_at_random_addresses(self):
        self.each_matches("--file-header", r"Type:\s+DYN")

    def test_tables_of_the_linker_are_read_only_once_it_is_loaded(self):
        self.each_matches("--program-headers", r"^\s+GNU_RELRO\s")
        self.each_matches("--dynamic", r"BIND_NOW|\(FLAGS_1\).*\bNOW\b")

    def test_the_stack_is_not_executable(self):
        self.each_matches("--program-headers", r"^\s+GNU_STACK\s+(0x\w+\s+){5}RW\s")

    def test_stacks_are_guarded(self):
        self.each_matches("--dyn-syms", r"\b__stack_chk_fail@")

    def test_copies_into_buffers_are_checked(self):
        # Checked variants of functions of libc, as __memcpy_chk.
        self.each_matches("--dyn-syms", r"\b__(?!stack)\w+_chk@")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
