#!/usr/bin/env python3
"""Checks the manual pages and completions of the build against the programs' --help, and completes
lines in bash and zsh as a user does.

usage: manuals_test.py SOURCE_DIR BUILD_DIR [TEST ...]
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
MANUALS = os.path.join(BUILD, "deploy", "manuals")
PROGRAMS = {name: os.path.join(BUILD, "bin", name) for name in ("sluiced", "sluice")}


def read(name):
    with open(os.path.join(MANUALS, name)) as file:
        return file.read()


def help_of(*command):
    return subprocess.run([*command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


def commands():
    return re.findall(r"^  (\w+(?: \w+)?)  ", help_of(PROGRAMS["sluice"]).split("\nFlags")[0],
                      re.MULTILINE)


def flags_of(text):
    return set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE))


def complete_in_bash(*words):
    """The completions of the last word."""
    script = f"""
      source {MANUALS}/{words[0]}.bash
      compopt() {{ :; }}
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
      _{words[0]}; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return subprocess.run(["bash", "-c", script, "bash", *words], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.split()


def complete_in_zsh(line):
    """What the line becomes when Tab is pressed at its end."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "ZDOTDIR": home, "TERM": "dumb", "PATH": os.environ["PATH"]}
        child, terminal = pty.fork()
        if child == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        # Prints the line when ^X is pressed.
        os.write(terminal, f"""stty -echo; unsetopt zle_bracketed_paste; PS1=; fpath=({MANUALS} $fpath)
autoload -U compinit; compinit -u -D; setopt no_auto_menu
show() {{ print -r -- "LINE<$BUFFER>" }}; zle -N show; bindkey '^X' show; bindkey '^I' complete-word
print READY\n""".encode())
        seen, sent = "", False
        end = time.monotonic() + 60
        while time.monotonic() < end and not (sent and re.search(r"LINE<(.*)>", seen)):
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 4096).decode()
            if not sent and re.search(r"^READY", seen, re.MULTILINE):
                os.write(terminal, f"{line}\t\x18".encode())
                seen, sent = "", True
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
        found = re.search(r"LINE<(.*)>", seen)
        return found[1] if found else seen


class ManualsTest(unittest.TestCase):
    def test_files_are_those_of_this_build(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, f"{SOURCE}/deploy/manuals.py", PROGRAMS["sluiced"],
                            PROGRAMS["sluice"], folder], check=True)
            self.assertEqual(len(os.listdir(folder)), 6)
            for name in os.listdir(folder):
                with open(os.path.join(folder, name)) as file:
                    self.assertEqual(file.read(), read(name), name)

    def test_every_flag_is_in_every_file(self):
        texts = {"sluiced": [help_of(PROGRAMS["sluiced"])],
                 "sluice": [help_of(PROGRAMS["sluice"]),
                            *(help_of(PROGRAMS["sluice"], *one.split()) for one in commands())]}
        for program, section in (("sluiced", 8), ("sluice", 1)):
            page = read(f"{program}.{section}").replace("\\-", "-")
            flags = set.union(*map(flags_of, texts[program]))
            self.assertGreater(len(flags), 30)
            for flag in flags:
                self.assertIn(f".TP\n\\fB{flag}\\fR", page)
                self.assertRegex(read(f"{program}.bash"), rf"[\" ]{flag}[\"= ]")
                self.assertRegex(read(f"_{program}"), rf"'\*{flag}\b")

    def test_every_command_is_in_the_manual(self):
        self.assertGreater(len(commands()), 15)
        for command in commands():
            self.assertIn(f"\n.SS sluice {command}", read("sluice.1"))

    def test_man_has_no_warnings(self):
        for page in ("sluiced.8", "sluice.1"):
            done = subprocess.run(["groff", "-man", "-ww", "-z", os.path.join(MANUALS, page)],
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.stderr, "", page)

    def test_bash_completes_commands_flags_and_values(self):
        self.assertEqual(complete_in_bash("sluice", "ac"), ["acquire"])
        self.assertEqual(complete_in_bash("sluice", "limits", "pu"), ["put"])
        self.assertEqual(complete_in_bash("sluice", "--server", "a:1", "run", "--ret"), ["--retry"])
        self.assertEqual(complete_in_bash("sluice", "--server", "=", "a:1", "run", "--ret"),
                         ["--retry"])
        self.assertEqual(complete_in_bash("sluice", "limits", "put", "api", "--bu"), ["--burst="])
        self.assertEqual(complete_in_bash("sluice", "query", "--ret"), [])
        self.assertEqual(complete_in_bash("sluice", "query", "--output", "=", "js"), ["json"])
        self.assertEqual(complete_in_bash("sluice", "query", "--output", "=")[-2:],
                         ["text", "json"])
        self.assertEqual(complete_in_bash("sluice", "query", "--output", "te"), ["text"])
        self.assertEqual(complete_in_bash("sluice", "run", "--limit", "a", "--", "--he"), [])
        self.assertEqual(complete_in_bash("sluiced", "--max_c"), ["--max_connections="])
        self.assertEqual(complete_in_bash("sluiced", "--overflow", "=", "al"), ["allow"])
        self.assertEqual(complete_in_bash("sluiced", "--limits", "=", f"{SOURCE}/dev"),
                         [f"{SOURCE}/dev"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here")
    def test_zsh_completes_commands_flags_and_values(self):
        for line, expected in {"sluice acq": "sluice acquire ",
                               "sluice limits pu": "sluice limits put ",
                               "sluice limits put api --bur": "sluice limits put api --burst=",
                               "sluice query --output=js": "sluice query --output=json ",
                               "sluice run --ret": "sluice run --retry ",
                               "sluiced --max_c": "sluiced --max_connections=",
                               "sluiced --overflow=al": "sluiced --overflow=allow "}.items():
            self.assertEqual(complete_in_zsh(line).strip(), expected.strip())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:], verbosity=2)
