#!/usr/bin/env python3
"""Attacks on sluiced over loopback. Each starts its own server, attacks it, measures and judges.

  attacks.py [--list] [--measure] [--variants] [--jobs N] [NAME...]

Prints one line for each: NAME: holds|open|falls short: measurements (want ...). One of which only
steps were too long runs again, alone, up to five times. Exit status 1 if any falls short. --list
says what each attack does. SLUICE_BIN: the folder of sluiced and sluice (default: build/bin).
"""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import on_bookings  # noqa: F401  (the attacks register themselves)
import on_envoy  # noqa: F401
import on_http  # noqa: F401
import on_memory  # noqa: F401
import on_ports  # noqa: F401
import on_receipts  # noqa: F401
import on_work  # noqa: F401
import all_at_once  # noqa: F401
from open_attacks import OPEN
from run import ATTACKS, STEPS, Run, Variant
from verdict import Verdict

LONGEST_S = 200  # all at once, where 60 attackers and the honest caller share a core
MORE_RUNS = 6  # of an attack of which only steps were too long
HOLDS, FALLS_SHORT, IS_OPEN, IS_SLOW = 0, 1, 3, 4  # exit statuses of one attack
VARIANTS = (Variant(threads=3), Variant(tls=True), Variant(scale=2), Variant(scale=0.5))


def run_one(name, variant):
    """In a process of its own. Returns its exit status."""
    # What is known to fall short is known of the attack as it is described.
    described = variant.scale == 1 and variant.threads == 1
    run = Run(variant, verdict=Verdict(OPEN.get(name) if described else None))
    start = time.monotonic()
    try:
        ATTACKS[name](run)
    except Exception as e:  # one line, whatever happens
        run.verdict.check(False, f"{type(e).__name__}: {e}".replace("\n", " ")[:300],
                          "the attack to run")
    title = f"{name} ({variant})" if str(variant) else name
    print(f"{title}: {run.verdict} [{time.monotonic() - start:.0f} s]", flush=True)
    if not run.verdict.holds:
        return IS_SLOW if run.verdict.unmet == {STEPS} else FALLS_SHORT
    return IS_OPEN if run.verdict.is_open else HOLDS


def start(name, variant):
    """Runs an attack in a process group of its own, which ends with it. Returns its exit status."""
    # It starts programs while its gRPC runs, whose handlers of forks can end the child before it is
    # one. all_at_once goes on in forked processes, which need them.
    forks = "1" if name == "all_at_once" else "0"
    attack = subprocess.Popen(
        [sys.executable, __file__, "--one",
         json.dumps(asdict(variant)), name],
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": forks},
        start_new_session=True)
    try:
        return attack.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        print(f"{name}: falls short: not done in {LONGEST_S} s (want the attack to run)",
              flush=True)
        return FALLS_SHORT
    finally:
        try:
            os.killpg(attack.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        attack.wait()


def wait_for_quiet_host():
    """Waits, for half a minute at most, until steps that do nothing are short: a virtual processor
    counts the time that its host takes away as CPU time of the step that runs."""
    until = time.monotonic() + 30
    while True:
        longest = 0
        end = time.monotonic() + 3
        before = time.thread_time()
        while time.monotonic() < end:
            now = time.thread_time()
            longest, before = max(longest, now - before), now
        if longest < 1e-3 or time.monotonic() > until:
            return f"where the longest step that does nothing is {longest * 1e3:.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="judge latency too, with the server on one core and all others on another")
    parser.add_argument("--variants", action="store_true",
                        help="on three loops, over TLS, with twice and with half of the parameters")
    parser.add_argument("--jobs",
                        type=int,
                        help="attacks at a time (default: 3; with --measure: 1)")
    parser.add_argument("--list", action="store_true", help="the names, and what each attack does")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ATTACKS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(ATTACKS)}")
    if options.list:
        for name, function in ATTACKS.items():
            print(f"{name:20} {' '.join(function.__doc__.split())}")
        return 0
    if options.one:
        return run_one(options.names[0], Variant(**json.loads(options.one)))
    jobs = options.jobs or (1 if options.measure else 3)
    if options.variants:
        variants = VARIANTS
    else:
        variants = (Variant(measure=options.measure),)
    # The longest first, and all_at_once alone at the end, since it takes all processors.
    names = sorted(options.names or ATTACKS,
                   key=lambda name: (name == "all_at_once", name != "log_denial"))
    runs = sorted([(name, variant) for variant in variants for name in names],
                  key=lambda one: one[0] == "all_at_once")
    beside = [one for one in runs if one[0] != "all_at_once"]
    begin = time.monotonic()
    statuses = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        statuses += pool.map(lambda one: start(*one), beside)
    statuses += [start(*one) for one in runs[len(beside):]]
    # A step that is long by itself is long in each run.
    for _ in range(MORE_RUNS):
        for i in [i for i, status in enumerate(statuses) if status == IS_SLOW]:
            print(f"Only steps were too long; again, alone, {wait_for_quiet_host()}:", flush=True)
            statuses[i] = start(*runs[i])
    opened = statuses.count(IS_OPEN)
    short = len(statuses) - statuses.count(HOLDS) - opened
    print(f"{statuses.count(HOLDS)} of {len(statuses)} attacks hold, {opened} are known to fall "
          f"short and no worse, {short} fall short; {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
