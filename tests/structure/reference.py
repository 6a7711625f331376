#!/usr/bin/env python3
"""Writes docs/reference.md: the flags, commands and log events of the programs.

Flags and commands come from --help, log events from the log calls in the source, and the meaning of
each event from docs/log_events.txt. With --check, writes nothing and fails if the page is stale.

usage: reference.py SOURCE_DIR BIN_DIR [--check]
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys

PAGE = "docs/reference.md"
MEANINGS = "docs/log_events.txt"
SOURCES = ("server", "common")

LOG_CALL = re.compile(r"(?:\.|->)(Info|Warning|Error)\(\s*([^\s,]+),")
# A function that logs the event that it is given, such as LogError(event, what).
WRAPPER = re.compile(r"(\w+)\((?:std|absl)::string_view event[^)]*\)[^{};]*\{(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r'\{\s*"([a-z_]+)"\s*,')


class Stale(Exception):
    """The sources and the data file do not agree."""


def help_of(program, *command):
    done = subprocess.run([program, *command, "--help"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=True, timeout=30)
    return done.stdout


def sections(text):
    """{heading: lines}; the lines before the first heading are under ""."""
    found = {"": []}
    heading = ""
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Z][a-z ]*):", line)
        if match:
            heading = match[1]
            found[heading] = []
        else:
            found[heading].append(line)
    return found


def entries(lines):
    """[(name, description)] of "  name   description" lines."""
    return [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines if line.strip()]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines


def code(text):
    return f"`{text}`"


def flag_table(lines):
    return table(["flag", "meaning"], [(code(name), text) for name, text in entries(lines)])


def server_flags(sluiced):
    text = help_of(sluiced)
    flags = [line for line in text.splitlines() if line.startswith("  --")]
    notes = [part for part in text.split("\n\n")[1:] if not part.startswith("  ")]
    return ["## Flags of sluiced", "", "```", "\n\n".join(notes), "```", "", *flag_table(flags)]


def commands(sluice):
    top = sections(help_of(sluice))
    notes = "\n".join(top["Flags of every command"]).split("\n\n")
    out = ["## Commands of sluice", "",
           *table(["command", "effect"], [(f"[{code(name)}](#{name.replace(' ', '-')})", text)
                                          for name, text in entries(top["Commands"])]), "",
           "Flags of every command:", "", *flag_table(notes[0].splitlines()), ""]
    out += ["```", "\n\n".join(note.strip("\n") for note in notes[1:] if note.strip()), "```", ""]
    for name, _ in entries(top["Commands"]):
        own = sections(help_of(sluice, *name.split()))
        usage, *text = [line for line in own[""] if line]
        out += [f"### {name}", "", code(usage.removeprefix("usage: ")), ""]
        out += ["\n\n".join(text), ""]
        if "Flags" in own:
            out += [*flag_table(own["Flags"]), ""]
        examples = [line[2:] for line in own["Examples"] if line.strip()]
        out += ["```sh", *examples, "```", ""]
    return out


def arguments(text, start):
    """The text from `start` to the parenthesis that closes the call."""
    depth, quoted = 1, False
    for i in range(start, len(text)):
        if text[i] == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted and text[i] in "()":
            depth += 1 if text[i] == "(" else -1
            if depth == 0:
                return text[start:i]
    return text[start:]


def log_calls(root):
    """[(event, level, fields, place)] of all log calls."""
    files = {path: path.read_text() for folder in SOURCES
             for path in sorted((root / folder).rglob("*")) if path.suffix in (".cc", ".h")}
    wrappers, calls = {}, []
    for text in files.values():
        for name, body in WRAPPER.findall(text):
            for match in LOG_CALL.finditer(body):
                if match[2] == "event":
                    fields = FIELD.findall(arguments(body, match.end()))
                    wrappers[name] = (match[1].lower(), fields)
    wrapped = re.compile(r"\b(%s)\(\s*\"([a-z_]+)\"" % "|".join(wrappers or ["\\0"]))
    for path, text in files.items():
        if path.name in ("log.h", "log.cc"):
            continue
        for match in LOG_CALL.finditer(text):
            place = f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
            event = re.fullmatch(r'"([a-z_]+)"', match[2])
            if event:
                fields = FIELD.findall(arguments(text, match.end()))
                calls.append((event[1], match[1].lower(), fields, place))
            elif match[2] != "event":
                raise Stale(f"{place}: name the event in a literal, so that it can be listed")
        for match in wrapped.finditer(text):
            place = f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
            calls.append((match[2], *wrappers[match[1]], place))
    return calls


def log_events(root):
    meanings = {}
    for line in (root / MEANINGS).read_text().splitlines():
        if line and not line.startswith("#"):
            event, meaning = line.split(": ", 1)
            meanings[event] = meaning
    levels, fields, wrong = {}, {}, []
    for event, level, names, place in log_calls(root):
        if event not in meanings and event not in levels:
            wrong.append(f"{place}: event {event} has no line in {MEANINGS}")
        levels.setdefault(event, set()).add(level)
        fields.setdefault(event, {}).update(dict.fromkeys(names))
    wrong += [f"{MEANINGS}: event {event} is logged nowhere" for event in meanings
              if event not in levels]
    if wrong:
        raise Stale("\n".join(wrong))
    rows = [(code(event), ", ".join(sorted(levels[event])),
             ", ".join(code(name) for name in fields[event]), meanings[event])
            for event in sorted(levels)]
    return ["## Log events", "",
            "Each event is one line on stderr: `time=... level=... event=... FIELD=VALUE ...`. "
            "Values with spaces or quotes are quoted. At most 20 lines a second are written for "
            "each event; the next line then says how many were suppressed. Logging does not wait "
            "for a reader: while stderr has no room, lines are dropped, and the next line that is "
            "written says how many were (`dropped`).", "",
            *table(["event", "level", "fields", "meaning"], rows)]


def page(root, binaries):
    lines = ["# Reference", "",
             "<!-- Generated by tests/structure/reference.py; do not edit. "
             "`./dev reference` writes it. -->", "",
             "All flags, commands and log events. This page is generated from the programs' "
             "`--help` and from the log calls in the source.", "",
             *server_flags(str(binaries / "sluiced")), "",
             *commands(str(binaries / "sluice")),
             *log_events(root)]
    return "\n".join(lines) + "\n"


def main():
    check = "--check" in sys.argv
    root, binaries = (pathlib.Path(os.path.abspath(one)) for one in sys.argv[1:3])
    try:
        text = page(root, binaries)
    except Stale as fault:
        sys.exit(str(fault))
    path = root / PAGE
    if not check:
        path.write_text(text)
        return
    now = path.read_text() if path.exists() else ""
    if now != text:
        sys.stdout.writelines(difflib.unified_diff(now.splitlines(True), text.splitlines(True),
                                                   PAGE, "generated"))
        sys.exit(f"{PAGE} is stale; ./dev reference writes it again")


main()
