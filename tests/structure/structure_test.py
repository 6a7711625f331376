#!/usr/bin/env python3
"""Checks that the tree follows the folder map of CONTRIBUTING.md, and that nothing is forgotten.

  structure_test.py ROOT

Each check returns its findings as lines "file: what is wrong". The cases in `SelfTest` plant one
mistake each, so that a check that no longer finds anything fails.
"""
import os
import re
import sys
import tempfile
import unittest

ROOTS = ("common", "server", "client")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def sources(root, *tops, suffixes=(".h", ".cc")):
    """Paths, relative to `root`, of the sources below the folders `tops`."""
    for top in tops:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith(suffixes):
                    yield os.path.relpath(os.path.join(folder, name), root)


class FolderMap:
    """The block ```folders of CONTRIBUTING.md.

    A line is `FOLDER[ + FOLDER...]: FOLDER, ...; LIBRARY, ...`. A folder includes itself, the
    folders to the right of the colon, and what those include. Folders joined by + include each
    other. A library named in the map is included only by the folders whose lines name it.
    """

    def __init__(self, text):
        block = re.search(r"^```folders\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if block is None:
            raise ValueError("CONTRIBUTING.md has no block that begins with ```folders")
        self.below = {}
        self.libraries = {}
        self.errors = []
        peers = {}
        for line in block[1].splitlines():
            line = line.split("#")[0].strip()
            if not line:
                continue
            left, _, right = line.partition(":")
            folders, _, libraries = right.partition(";")
            group = [name.strip() for name in left.split("+")]
            for folder in group:
                peers[folder] = group
                self.below[folder] = [name.strip() for name in folders.split(",") if name.strip()]
                self.libraries[folder] = [name.strip() for name in libraries.split(",")
                                          if name.strip()]
        for folder, named in self.below.items():
            for name in named:
                if name not in self.below:
                    self.errors.append(f"CONTRIBUTING.md: {folder} may include {name}, "
                                       "which has no line of its own")
        self.reachable = {}
        for folder in self.below:
            seen, next_ones = set(peers[folder]), list(self.below[folder])
            while next_ones:
                name = next_ones.pop()
                if name in peers[folder]:
                    self.errors.append(f"CONTRIBUTING.md: {folder} includes itself by a cycle")
                elif name not in seen and name in self.below:
                    seen.update(peers[name])
                    for peer in peers[name]:
                        next_ones += self.below[peer]
            self.reachable[folder] = seen


def folder_of_include(path):
    if path.startswith(("sluice/v1/", "grpc/health/", "grpc/reflection/", "envoy/", "ratelimit/")):
        return "proto"
    if path.startswith("sluice/"):
        return "client/include/sluice"
    return os.path.dirname(path) if path.startswith(tuple(r + "/" for r in ROOTS)) else None


def check_includes(root):
    folders = FolderMap(read(root, "CONTRIBUTING.md"))
    findings = list(folders.errors)
    libraries = {name for named in folders.libraries.values() for name in named}
    found = {"proto"}
    for path in sources(root, *ROOTS):
        folder = os.path.dirname(path)
        if folder not in folders.below:
            if folder not in found:
                findings.append(f"{path}: CONTRIBUTING.md has no line for {folder}")
            found.add(folder)
            continue
        found.add(folder)
        text = read(root, path)
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start(match.lastindex)) + 1
            include = match[1] or match[2]
            library = re.split(r"[/.]", include)[0]
            if match[2] and library in libraries and library not in folders.libraries[folder]:
                findings.append(f"{path}:{line}: {folder} must not include the library {library}")
            target = folder_of_include(include)
            if target is not None and target not in folders.reachable[folder]:
                findings.append(f"{path}:{line}: {folder} must not include {target}")
    for folder in folders.below:
        if folder not in found:
            findings.append(f"CONTRIBUTING.md: {folder} has no sources")
    return findings


def check_tests_are_built(root):
    """Each *_test.cc is named by the CMakeLists.txt of its folder or of one above."""
    findings = []
    for path in sources(root, "tests", suffixes=("_test.cc",)):
        folder = os.path.dirname(path)
        while not os.path.exists(os.path.join(root, folder, "CMakeLists.txt")):
            folder = os.path.dirname(folder)
        lists = read(root, os.path.join(folder, "CMakeLists.txt"))
        name = os.path.relpath(path, os.path.join(folder))
        # life_test.cc may stand there as "life" (of a foreach) or "life_test" (the program's name).
        stem = re.escape(name[: -len("_test.cc")])
        if not re.search(rf"(?<![\w/]){stem}(_test(\.cc)?)?(?![\w/.])", lists):
            findings.append(f"{path}: {folder}/CMakeLists.txt does not build it")
    return findings


def check_unit_tests_mirror_folders(root):
    findings = []
    for folder in sorted({os.path.dirname(path) for path in sources(root, "tests/unit")}):
        part = os.path.relpath(folder, os.path.join("tests", "unit"))
        places = (part, os.path.join("server", part), part.replace("client", "client/src", 1))
        if not any(os.path.isdir(os.path.join(root, place)) for place in places):
            findings.append(f"{folder}: there is no folder {part} to test")
    return findings


def check_bounds_are_enforced(root):
    """Each constant of common/bounds.h is used by code elsewhere."""
    text = read(root, "common/bounds.h")
    names = set(re.findall(r"^inline constexpr .*?\b(k\w+)\b", text, re.MULTILINE))
    used = set()
    for path in sources(root, *ROOTS):
        if path != "common/bounds.h":
            code = re.sub(r"//.*", "", read(root, path))
            used |= names & set(re.findall(r"\bk\w+\b", code))
    # A bound from which another is computed counts as used.
    used |= {name for name in names if len(re.findall(rf"\b{name}\b", text)) > 1}
    return [f"common/bounds.h: nothing enforces {name}" for name in sorted(names - used)]


def check_algorithms_are_offered(root):
    """Each algorithm of admin.proto is a choice on the page, and is explained in the documents."""
    values = re.findall(r"^  (ALGORITHM_\w+) = [1-9]", read(root, "proto/sluice/v1/admin.proto"),
                        re.MULTILINE)
    form = "server/transport/web/page/assets/edit.js"
    findings = [f"{form}: does not offer {value}" for value in values
                if f"'{value}'" not in read(root, form)]
    names = [value.removeprefix("ALGORITHM_").lower() for value in values]
    return findings + [f"{page}: does not explain `{name}`"
                       for page in ("README.md", "docs/limits.md") for name in names
                       if f"| `{name}` |" not in read(root, page)]


CHECKS = (check_includes, check_tests_are_built, check_unit_tests_mirror_folders,
          check_bounds_are_enforced, check_algorithms_are_offered)


class TreeTest(unittest.TestCase):
    root = "."

    def test_tree(self):
        for check in CHECKS:
            with self.subTest(check.__name__):
                findings = check(self.root)
                if findings:
                    self.fail("\n" + "\n".join(findings))


class SelfTest(unittest.TestCase):
    FILES = {
        "CONTRIBUTING.md": "```folders\ncommon:\nserver/low: common; zlib\n"
                           "server/high: server/low\n```\n",
        "common/bounds.h": "inline constexpr int kMost = 1;\n",
        "common/a.h": "",
        "server/low/a.h": '#include <zlib.h>\n#include "common/a.h"\n',
        "server/high/a.cc": '#include "server/low/a.h"\n#include "common/a.h"\nint i = kMost;\n',
        "tests/unit/low/CMakeLists.txt": "sluice_test(low_test SOURCES a_test.cc)\n",
        "tests/unit/low/a_test.cc": "",
        "proto/sluice/v1/admin.proto": "  ALGORITHM_NONE = 0;\n  ALGORITHM_ONE = 1;\n",
        "server/transport/web/page/assets/edit.js": "['ALGORITHM_ONE']\n",
        "README.md": "| `one` | the only one |\n",
        "docs/limits.md": "| `one` | the only one |\n",
    }

    def findings(self, **changed):
        """What the checks find in a small tree, with the files `changed` (__ stands for /)."""
        files = self.FILES | {k.replace("__", "/").replace("_DOT_", "."): v
                              for k, v in changed.items()}
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return [finding for check in CHECKS for finding in check(root)]

    def test_accepts_tree_that_follows_its_map(self):
        self.assertEqual(self.findings(), [])

    def test_finds_upward_include(self):
        self.assertEqual(
            self.findings(server__low__b_DOT_h='#include <map>\n#include "server/high/a.h"\n'),
            ["server/low/b.h:2: server/low must not include server/high"])

    def test_finds_library_of_another_folder(self):
        self.assertEqual(self.findings(common__a_DOT_h="#include <zlib.h>\n"),
                         ["common/a.h:1: common must not include the library zlib"])

    def test_finds_folder_without_line(self):
        self.assertEqual(self.findings(server__new__a_DOT_h=""),
                         ["server/new/a.h: CONTRIBUTING.md has no line for server/new"])

    def test_finds_line_without_folder_and_cycle(self):
        found = self.findings(**{"CONTRIBUTING_DOT_md":
                                 "```folders\ncommon:\nserver/low: common, server/high; zlib\n"
                                 "server/high: server/low\ngone: common\n```\n"})
        self.assertIn("CONTRIBUTING.md: gone has no sources", found)
        self.assertIn("CONTRIBUTING.md: server/low includes itself by a cycle", found)

    def test_finds_test_that_is_not_built(self):
        self.assertEqual(self.findings(tests__unit__low__b_test_DOT_cc=""),
                         ["tests/unit/low/b_test.cc: tests/unit/low/CMakeLists.txt "
                          "does not build it"])

    def test_finds_unit_tests_of_no_folder(self):
        self.assertEqual(self.findings(tests__unit__gone__CMakeLists_DOT_txt="a_test.cc",
                                       tests__unit__gone__a_test_DOT_cc=""),
                         ["tests/unit/gone: there is no folder gone to test"])

    def test_finds_bound_that_nothing_enforces(self):
        self.assertEqual(
            self.findings(common__bounds_DOT_h="inline constexpr int kMost = 1;\n"
                                               "inline constexpr int kLeast = 1;\n"),
            ["common/bounds.h: nothing enforces kLeast"])

    def test_finds_algorithm_that_is_not_offered(self):
        self.assertEqual(
            self.findings(proto__sluice__v1__admin_DOT_proto="  ALGORITHM_TWO_MORE = 2;\n"),
            ["server/transport/web/page/assets/edit.js: does not offer ALGORITHM_TWO_MORE",
             "README.md: does not explain `two_more`",
             "docs/limits.md: does not explain `two_more`"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        TreeTest.root = os.path.abspath(sys.argv.pop(1))
    unittest.main()
