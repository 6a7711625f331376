#!/usr/bin/env python3
"""Checks the documents: each relative link and path that they name exists, so does each decision
record that a comment names, and each test that SECURITY.md names; all decision records have one form
and are in the index; a program that a page shows is the one that the tests run; the tables of who
may call what name every RPC.

usage: docs_test.py SOURCE_DIR
"""
import pathlib
import re
import sys

TOP = ("client", "common", "deploy", "docs", "proto", "server", "tests")


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


def faults(root, page):
    text = (root / page).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (root / page).parent / path if path else root / page
        if not target.exists():
            yield f"{page}: the link {link} leads nowhere"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"{page}: the link {link} names no heading"
    for path in re.findall(r"`([\w.-]+/[\w./*-]+)`", text):
        # NAME stands for a name that the reader chooses.
        named = path.split("/")[0] in TOP and "NAME" not in path
        if named and not any(root.glob(path.rstrip("/"))):
            yield f"{page}: the path {path} does not exist"


def differing_programs(root, page):
    """Blocks of code below `<!-- PATH -->` that differ from the file."""
    text = (root / page).read_text()
    for path, code in re.findall(r"^<!-- (\S+) -->\n```\w*\n(.*?)^```$", text,
                                 re.MULTILINE | re.DOTALL):
        if code != (root / path).read_text():
            yield f"{page}: the program differs from {path}"


def malformed_records(root):
    """Decision records that lack a part, or whose line in the index differs."""
    index = (root / "docs/adr/README.md").read_text()
    for page in sorted((root / "docs/adr").glob("[0-9]*.md")):
        text = page.read_text()
        title = re.match(r"# (\d+)\. (.+)\n", text)
        status = re.search(r"^Status: ([\w -]+, [\d-]+)", text, re.MULTILINE)
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        if not title or not status or int(title[1]) != int(page.name[:4]):
            yield f"docs/adr/{page.name}: needs a title with its number, and a status with a date"
        elif not {"Context", "Decision", "Consequences"} <= set(parts):
            yield f"docs/adr/{page.name}: needs Context, Decision and Consequences"
        elif f"| {title[1]} | [{title[2]}]({page.name}) | {status[1]} |" not in index:
            yield f"docs/adr/README.md: the line of {page.name} is missing or differs"


def missing_records(root):
    records = {path.name[:4] for path in (root / "docs/adr").glob("*.md")}
    for folder in ("client", "common", "deploy", "proto", "server", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cc", ".h", ".lua", ".proto", ".py", ".txt", ".yaml"):
                continue
            for numbers in re.findall(r"docs/adr/(\d{4}(?:, \d{4})*)", path.read_text()):
                for number in numbers.split(", "):
                    if number not in records:
                        yield f"{path.relative_to(root)}: there is no docs/adr/{number}"


def missing_tests(root):
    """Tests that SECURITY.md names, `FOLDER`: `TEST`, `TEST`; and that are not in that folder."""
    text = (root / "SECURITY.md").read_text()
    for folder, names in re.findall(r"`(tests/[\w/]+)`: (`\w+`(?:, `\w+`)*)", text):
        files = [path for path in (root / folder).rglob("*") if path.suffix in (".cc", ".h", ".py")]
        for name in re.findall(r"\w+", names):
            if not any(name in path.name or name in path.read_text() for path in files):
                yield f"SECURITY.md: no test in {folder} is named {name}"


def unlisted_calls(root):
    """RPCs that the table of docs/http.md lacks, and admin RPCs that read, where docs/security.md
    names others."""
    access = (root / "docs/http.md").read_text().partition("\n## Access\n")[2].partition("\n## ")[0]
    rows = [set(re.findall(r"\w+", cell)) for cell in re.findall(r"^\| ([^|]+) \|", access,
                                                                re.MULTILINE)]
    for proto in ("admin", "rate_limiter"):
        text = (root / f"proto/sluice/v1/{proto}.proto").read_text()
        for name in re.findall(r"^  rpc (\w+)\((?!stream)", text, re.MULTILINE):
            if not any(name[0].lower() + name[1:] in row for row in rows):
                yield f"docs/http.md: the table of access lacks {name}"
    reading = next(row for row in rows if "listLimits" in row)
    view = re.search(r"^\| `admin_view` \| ([^;|]+)", (root / "docs/security.md").read_text(),
                     re.MULTILINE)
    if {name[0].lower() + name[1:] for name in re.findall(r"\w+", view[1])} != reading:
        yield "docs/security.md: admin_view allows other calls than docs/http.md lists as reading"


def main():
    root = pathlib.Path(sys.argv[1])
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    pages += sorted((root / "docs").rglob("*.md"))
    found = [fault for page in pages for fault in faults(root, page.relative_to(root))]
    for page in pages:
        found += differing_programs(root, page.relative_to(root))
    found += [*malformed_records(root), *missing_records(root), *missing_tests(root),
              *unlisted_calls(root)]
    if found:
        sys.exit("\n".join(found))
    print(f"{len(pages)} pages: all links and paths exist")


main()
