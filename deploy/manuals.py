#!/usr/bin/env python3
"""Writes the manual pages of sluiced and sluice, and their completions for bash and zsh, from the
programs' --help.

usage: manuals.py SLUICED SLUICE FOLDER
"""
import os
import re
import subprocess
import sys
from typing import NamedTuple


class Flag(NamedTuple):
    name: str      # with --
    value: str     # as in the help; "": it takes none
    optional: bool  # of the value
    text: str

    @property
    def choices(self):
        """The values, if the help lists them all."""
        words = self.value.split("|")
        return words if len(words) > 1 and all(one.islower() for one in words) else []

    @property
    def is_path(self):
        return self.value in ("FILE", "PATH")


class Command(NamedTuple):
    name: str
    usage: str
    text: str
    flags: list
    examples: list


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout


def flags_of(lines):
    found = []
    for line in lines:
        match = re.match(r"  (--[\w-]+)(\[)?(?:=(.*?))?\]?\s{2,}(.*)", line)
        if match:
            found.append(Flag(match[1], match[3] or "", bool(match[2]), match[4]))
    return found


def sections(text):
    """{heading: lines}; the lines before the first heading are under ""."""
    found = {"": []}
    heading = ""
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Z][a-z ]*):", line)
        heading = match[1] if match else heading
        if match:
            found[heading] = []
        else:
            found[heading].append(line)
    return found


class Program:
    """What the help of a program says."""

    def __init__(self, path, name):
        self.name = name
        self.version = run(path, "--version").split()[1]
        text = run(path, "--help")
        parts = sections(text)
        self.flags = flags_of(text.splitlines())
        self.commands = []
        for line in parts.get("Commands", []):
            command = re.match(r"  (\w+(?: \w+)?)  ", line)
            if command:
                self.commands.append(self.command(path, command[1]))
        first, second, *rest = text.split("\n\n")
        # "usage: ..." and what the program does, or "PROGRAM: what it does" and the usage.
        usage, summary = (first, second) if first.startswith("usage: ") else (second, first)
        self.usage = usage.removeprefix("usage: ").strip()
        self.summary = summary.removeprefix(f"{name}: ")
        self.notes = [one for one in rest if not re.match(r"  --|Commands:|Flags|Examples", one)]
        self.examples = [one[2:] for one in parts.get("Examples", []) if one]

    @staticmethod
    def command(path, name):
        own = sections(run(path, *name.split(), "--help"))
        usage, *text = [line for line in own[""] if line]
        return Command(name, usage.removeprefix("usage: "), "\n".join(text),
                       flags_of(own.get("Flags", [])), [one[2:] for one in own["Examples"] if one])


# ---- Manual pages ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"(?m)^\.", r"\\&.", text)


def roff_flags(flags):
    lines = []
    for one in flags:
        value = f"[=\\fI{roff(one.value)}\\fR]" if one.optional else f"=\\fI{roff(one.value)}\\fR"
        lines += [".TP", f"\\fB{roff(one.name)}\\fR" + (value if one.value else ""), roff(one.text)]
    return lines


def roff_example(lines):
    return [".PP", ".nf", ".RS", *map(roff, lines), ".RE", ".fi"] if lines else []


def manual(program, section, see_also):
    lines = [f'.TH {program.name.upper()} {section} "" "Sluice {program.version}" "Sluice"',
             '.\\" Generated from --help by deploy/manuals.py.', ".ad l", ".nh",
             ".SH NAME", f"{program.name} \\- {roff(program.summary.rstrip('.'))}",
             ".SH SYNOPSIS", f".B {roff(program.usage)}", ".SH DESCRIPTION"]
    for note in program.notes:
        lines += [".PP", roff(note)]
    lines += [".SH OPTIONS", *roff_flags(program.flags)]
    if program.commands:
        lines += [".SH COMMANDS"]
    for one in program.commands:
        lines += [f".SS {roff(one.usage)}", roff(one.text).replace("\n", "\n.br\n"), *roff_flags(one.flags),
                  *roff_example(one.examples)]
    if program.examples:
        lines += [".SH EXAMPLES", *roff_example(program.examples)]
    lines += [".SH SEE ALSO", see_also]
    return "\n".join(lines) + "\n"


# ---- Completions ----

def words_of(flags):
    return " ".join(one.name + ("=" if one.value and not one.optional else "") for one in flags)


def values_of(program):
    """{flag: choices}, the flags whose value is a path, those whose value may be the next word."""
    every = [*program.flags, *(flag for one in program.commands for flag in one.flags)]
    choices = {}
    for one in every:
        if one.choices:
            # A flag of several commands: all that one of them takes.
            known = choices.setdefault(one.name, [])
            known += [word for word in one.choices if word not in known]
    paths = sorted({one.name for one in every if one.is_path})
    valued = sorted({one.name for one in every if one.value and not one.optional})
    return choices, paths, valued


def bash(program):
    """Words before the cursor that are no flags are the command, as far as there is such a command."""
    choices, paths, valued = values_of(program)
    name = program.name
    starts = sorted({one.name.split()[0] for one in program.commands if " " in one.name})
    lines = [f"# Completion of {name} for bash. Generated from its --help by deploy/manuals.py.", "",
             f"_{name}_values() {{ # FLAG BEGINNING", "  case $1 in"]
    for flag, words in choices.items():
        lines.append(f'    {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$2")) ;;')
    if paths:
        lines.append(f'    {" | ".join(paths)}) COMPREPLY=($(compgen -f -- "$2")) ;;')
    lines += ["  esac", "}", "",
              f"_{name}() {{",
              '  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}',
              '  local command= words= i',
              "  COMPREPLY=()",
              "  # bash splits words at `=`.",
              '  if [ "$current" = "=" ]; then',
              f'    _{name}_values "$before" ""',
              "    return",
              '  elif [ "$before" = "=" ]; then',
              f'    _{name}_values "${{COMP_WORDS[COMP_CWORD - 2]}}" "$current"',
              "    return",
              "  fi",
              '  case $before in',
              f'    {" | ".join(valued)})',
              f'      _{name}_values "$before" "$current"',
              "      return",
              "      ;;",
              "  esac"]
    if program.commands:
        firsts = " ".join(dict.fromkeys(one.name.split()[0] for one in program.commands))
        lines += ["  for ((i = 1; i < COMP_CWORD; ++i)); do",
                  "    case ${COMP_WORDS[i]} in",
                  "      --) return ;;",
                  "      =) ((++i)) ;;",
                  f'      {" | ".join(valued)}) [ "${{COMP_WORDS[i + 1]}}" = "=" ] || ((++i)) ;;',
                  "      -*) ;;",
                  "      *)",
                  "        case $command in",
                  f'          "" | {" | ".join(starts)})',
                  "            command=${command:+$command }${COMP_WORDS[i]}",
                  "            ;;",
                  "        esac",
                  "        ;;",
                  "    esac",
                  "  done",
                  "  case $command in",
                  f'    "") words="{firsts}" ;;']
        for start in starts:
            seconds = [one.name.split()[1] for one in program.commands
                       if one.name.startswith(start + " ")]
            lines.append(f'    {start}) words="{" ".join(seconds)}" ;;')
        for one in program.commands:
            if one.flags:
                lines.append(f'    "{one.name}") words="{words_of(one.flags)}" ;;')
        lines += ["  esac"]
    lines += [f'  COMPREPLY=($(compgen -W "$words {words_of(program.flags)}" -- "$current"))',
              '  [[ ${COMPREPLY[0]} == *= && ${#COMPREPLY[@]} -eq 1 ]] && compopt -o nospace',
              "  return 0",
              "}", "",
              f"complete -o default -F _{name} {name}"]
    return "\n".join(lines) + "\n"


def zsh_text(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_flag(flag):
    action = "_files" if flag.is_path else f"({' '.join(flag.choices)})" if flag.choices else " "
    optional = ":" if flag.optional else ""
    value = f":{optional}{zsh_text(flag.value)}:{action}" if flag.value else ""
    equals = "=-" if flag.optional else "=" if flag.value else ""
    return f"'*{flag.name}{equals}[{zsh_text(flag.text)}]{value}'"


def zsh(program):
    lines = [f"#compdef {program.name}",
             f"# Completion of {program.name} for zsh. Generated from its --help by deploy/manuals.py.",
             "", "local -a flags=(", *(f"  {zsh_flag(one)}" for one in program.flags), ")"]
    if not program.commands:
        return "\n".join([*lines, "_arguments $flags"]) + "\n"
    firsts = {}
    for one in program.commands:
        first, *second = one.name.split()
        firsts.setdefault(first, "" if second else one.text.split("\n")[0])
    described = " ".join(f'{first}\\:"{zsh_text(text)}"' if text else first
                         for first, text in firsts.items())
    _, _, valued = values_of(program)
    lines += ["local -a others=()", "local command= i",
              "for ((i = 2; i < CURRENT; ++i)); do",
              "  case $words[i] in",
              f'    {"|".join(valued)}) ((++i)) ;;',
              "    -*) ;;",
              "    *) others+=($words[i]) ;;",
              "  esac",
              "done",
              "command=$others[1]",
              "case $command in"]
    for start in sorted({one.name.split()[0] for one in program.commands if " " in one.name}):
        seconds = [one for one in program.commands if one.name.startswith(start + " ")]
        shown = " ".join(f'{one.name.split()[1]}\\:"{zsh_text(one.text.splitlines()[0])}"'
                         for one in seconds)
        lines += [f"  {start})", "    command+=\" $others[2]\"",
                  f"    flags+=('2:command:(({shown}))')", "    ;;"]
    lines += ["esac", "case $command in"]
    for one in program.commands:
        if one.flags:
            lines += [f'  "{one.name}")', "    flags+=(",
                      *(f"      {zsh_flag(flag)}" for flag in one.flags), "    )", "    ;;"]
    lines += ["esac", f"_arguments $flags '1:command:(({described}))' '*:argument:_files'"]
    return "\n".join(lines) + "\n"


def main():
    sluiced, sluice, folder = sys.argv[1:]
    for path, name, section, see_also in (
            (sluiced, "sluiced", 8, ".BR sluice (1)"), (sluice, "sluice", 1, ".BR sluiced (8)")):
        program = Program(path, name)
        for file, text in ((f"{name}.{section}", manual(program, section, see_also)),
                           (f"{name}.bash", bash(program)), (f"_{name}", zsh(program))):
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, file), "w") as out:
                out.write(text)


if __name__ == "__main__":
    main()
