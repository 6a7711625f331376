"""All attacks at the same time, on one server with the memory store and one with Redis."""
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback

import grpc

from ledger import Ledger
from on_bookings import WallClock
from on_envoy import flags as envoy_flags
from run import ATTACKS, IN_REDIS, Run, acquisition, attack, seconds

ATTACK_S = 15  # after all attacks are prepared
PREPARE_S = 40
MEMORY_LIMIT_MB = 512
# Statuses with which a server answers that it has not executed the call: it sheds load; Redis has
# just lost its data.
REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


@attack()
def all_at_once(run):
    """Every attack at once. Honest callers must be served, and nothing may be granted wrongly."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        clock = WallClock(folder)
        flags = [f"--memory_limit={MEMORY_LIMIT_MB}MiB", "--max_buckets=400000"]
        memory = run.server(*flags, *envoy_flags(), tls=True, env=clock.environment,
                            wall_offset_file=clock.path)
        with_redis = Run(run.variant, verdict=run.verdict, core=run.core)
        redis = with_redis.server(*flags, redis=True)
        with_redis.flushed = True  # by booked_floor
        names = [name for name in ATTACKS if name != "all_at_once"]
        # One party for each attack, one for each auditor, one for this process.
        ready = context.Barrier(len(names) + 3)
        children = []
        for name in names:
            facts = (redis if name in IN_REDIS else memory).facts()
            children.append(start(context, attack_shared, folder, name, run.variant, facts, ready))
        for name, target in (("auditor", memory), ("auditor of Redis", redis)):
            children.append(start(context, audit, folder, name, run.variant, target.facts(), ready))
        try:
            ready.wait(PREPARE_S)
        except threading.BrokenBarrierError:
            run.note(f"not all attacks were prepared within {PREPARE_S} s")
        run.begin()
        with_redis.begin()
        until = time.monotonic() + ATTACK_S + 10
        for child in children:
            child.join(max(0, until - time.monotonic()))
        ledgers = {False: Ledger(), True: Ledger()}  # by whether it is the one of Redis
        missing = []
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
            try:
                judge_child(run, child.name, folder, ledgers)
            except FileNotFoundError:
                missing.append(child.name)
        if missing:
            run.note(f"without a record: {', '.join(missing)}")
        for of_redis, judged in ((False, run), (True, with_redis)):
            run.note("Redis" if of_redis else "memory store")
            judged.rss(MEMORY_LIMIT_MB)
            judged.end()
            judged.wrong_grants(ledgers[of_redis])


def start(context, function, folder, name, *arguments):
    child = context.Process(target=function, name=name, args=(f"{folder}/{name}", name, *arguments),
                            daemon=True)
    child.start()
    return child


class TimeIsUp(Exception):
    pass


time_is_up = False  # of this process


def stop_after(ready):
    """Waits until all are prepared; from then on, TimeIsUp comes after ATTACK_S."""
    def stop(*_):
        global time_is_up
        time_is_up = True
        raise TimeIsUp
    signal.signal(signal.SIGALRM, stop)
    try:
        ready.wait(PREPARE_S)
    except threading.BrokenBarrierError:
        pass
    signal.alarm(ATTACK_S)


def attack_shared(path, name, variant, facts, ready):
    """In a process of its own: attacks again and again until the time is up."""
    run = Run(variant, shared=facts)
    run.lower_priority()
    run.on_first_begin = lambda: stop_after(ready)
    errors = 0
    try:
        while True:
            try:
                ATTACKS[name](run)
                time.sleep(0.1)
            except (OSError, RuntimeError, grpc.RpcError):
                errors += 1  # the server may close connections and refuse calls
                time.sleep(0.2)
    except TimeIsUp:
        pass
    except Exception:
        # TimeIsUp may have come while another exception was handled, or have made one.
        run.exact(time_is_up, f"{name}: {traceback.format_exc(limit=-1)}".replace("\n", " "),
                  "attacks that run")
    finally:
        signal.alarm(0)
        save(path, run, {"errors": errors})
        os._exit(0)


def audit(path, name, variant, facts, ready):
    """An honest caller of limits that are nearly always empty: records each grant, counts each call
    that got no answer. It connects before the attacks, which come from its own address too: a flood
    of handshakes keeps others of its address waiting."""
    run = Run(variant, shared=facts)
    stub = run.server().stub()
    stub.Acquire(acquisition(("api", "k")), timeout=10)
    limits = ("tight", "api") if "Redis" in name else ("tight", "tight_log", "tight_window", "api",
                                                       "p1", "log")
    lost = {}
    calls = 0
    try:
        stop_after(ready)
        while True:
            limit = limits[calls % len(limits)]
            charge = (limit, "k" if limit in ("api", "p1") else "a")
            asked_at = time.monotonic()
            try:
                answer = stub.Acquire(acquisition(charge), timeout=10)
                if answer.granted:
                    run.ledger.add([charge],
                                   asked_at,
                                   time.monotonic(),
                                   wait_s=seconds(answer.wait))
            except grpc.RpcError as e:
                if e.code() not in REFUSALS[:2 if "Redis" in name else 1]:
                    # The first details of a code say why; those that follow say "failed to connect".
                    lost.setdefault(e.code().name, [0, e.details()])[0] += 1
            calls += 1
            time.sleep(0.002)
    except TimeIsUp:
        pass
    finally:
        signal.alarm(0)
        codes = ", ".join(f"{count} {code} ({details})" for code, (count, details) in lost.items())
        unanswered = sum(count for count, _ in lost.values())
        run.exact(not lost, f"{name}: {calls} calls, {unanswered} without an answer {codes}".strip(),
                  "each honest call answered")
        save(path, run, {"calls": calls})
        os._exit(0)


def save(path, run, facts):
    run.ledger.save(f"{path}.ledger")
    with open(path, "w") as file:
        json.dump({"holds": run.verdict.holds, "text": str(run.verdict), **facts}, file)


def judge_child(run, name, folder, ledgers):
    with open(f"{folder}/{name}") as file:
        result = json.load(file)
    ledgers[name in IN_REDIS or "Redis" in name].load(f"{folder}/{name}.ledger")
    if not result["holds"]:
        run.exact(False, f"{name} {result['text'][:300]}", "nothing granted wrongly, nothing lost")
    if "calls" in result:
        run.note(f"{name}: {result['calls']} calls answered")
