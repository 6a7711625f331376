"""One run of one attack: its servers, what it measures and what it judges."""
import os
import resource
import time
from dataclasses import dataclass

import grpc

from http2 import message
from ledger import Ledger
from server import HonestCaller, Redis, Server, Target, known_flags, pb
from verdict import Verdict

ATTACKS = {}  # by name: function of a Run
IN_REDIS = set()  # names of those that attack a server with Redis
# The longest step of an event loop, in CPU time: what is wanted, and what is asserted. Where server
# and attackers share the cores, a step loses its caches whenever it is preempted, and a longest of
# thousands shows it: four times. With --measure the server has a core of its own: twice, as the
# histogram's buckets are an eighth apart and the machine may be half as fast at times.
STEP_MS = 1
STEP_ASSERTED_MS = 4
STEP_ASSERTED_MEASURED_MS = 2
STEPS = f"steps of <= {STEP_MS} ms CPU"


def attack(redis=False):
    """Marks a function as an attack. Its first line says what it does."""
    def register(function):
        assert function.__name__ not in ATTACKS, function.__name__
        ATTACKS[function.__name__] = function
        if redis:
            IN_REDIS.add(function.__name__)
        return function
    return register


@dataclass(frozen=True)
class Variant:
    threads: int = 1  # event loops of the server
    tls: bool = False
    scale: float = 1  # of the counts of connections, calls and messages
    measure: bool = False  # judge latency too: the server on one core, all others on another

    def __str__(self):
        parts = [f"--threads={self.threads}"] if self.threads != 1 else []
        parts += ["TLS"] if self.tls else []
        parts += [f"x {self.scale:g}"] if self.scale != 1 else []
        return " ".join(parts)


class Run:
    """Starts servers, and judges. `shared`: facts of a running server that other attacks share;
    then this run attacks and records, and all_at_once judges."""

    def __init__(self, variant=Variant(), shared=None, verdict=None, core=None):
        self.variant = variant
        self.verdict = verdict or Verdict()
        self.ledger = Ledger() if shared else None
        self.on_first_begin = None
        self.flushed = False  # an attack made Redis lose its data
        self.target = None
        self.shared = Target(**shared) if shared else None
        self._honest = None
        self._rss_at_start = self._cpu_at_start = 0
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
        # That an attack may open. Four that share a server fit together: beyond what it may open
        # it closes idle connections of the address that has most, which honest callers share.
        self.most_files = (min(most, 65536) - 500) // (4 if shared else 1)
        self.core = core  # of the server; None: any
        cores = sorted(os.sched_getaffinity(0))
        if variant.measure and len(cores) > 1:
            self.core = cores[0]
            os.sched_setaffinity(0, {cores[1]})  # of this process and all that it starts

    def n(self, count, at_most=1 << 30):
        """A count of the attack's description, scaled."""
        return max(1, min(at_most, round(count * self.variant.scale)))

    def server(self, *flags, honest=True, honest_timeout_s=10, redis=False, tls=None, **options):
        """Starts the server that is attacked. Flags that it does not know are left out and
        noted."""
        if self.shared:
            self.target = self.shared
            return self.target
        known = [flag for flag in flags if flag.lstrip("-").split("=")[0] in known_flags()]
        for flag in flags:
            if flag not in known:
                self.note(f"the server has no {flag}")
        if redis:
            self.redis = Redis()
            options["redis"] = self.redis.path
        self.target = Server(*known, threads=self.variant.threads, core=self.core,
                             tls=self.variant.tls if tls is None else tls, **options)
        if honest:
            self._honest = HonestCaller(self.target, honest_timeout_s)
        return self.target

    def watch_honest_alone(self):
        if not self.shared:
            alone = HonestCaller(self.target).watch(2)
            self.note(f"honest alone p50 {alone['p50']:.2f}, max {alone['max']:.1f} ms")

    def lower_priority(self):
        """With --measure attackers take what the honest caller and Redis, on the same core, leave:
        a server that is on another core is to be judged, not the scheduler."""
        if self.variant.measure:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, 15)

    def begin(self):
        """Memory, CPU and latency are measured from here. From here this process has low
        priority."""
        self.lower_priority()
        if self.shared:
            if self.on_first_begin:
                self.on_first_begin, first = None, self.on_first_begin
                first()
            return
        if os.geteuid() == 0:  # else the peak is that since the start
            with open(f"/proc/{self.target.pid}/clear_refs", "w") as f:
                f.write("5")  # resets the peak
        self._rss_at_start = self.target.memory_mb()
        self._cpu_at_start = self.target.cpu_s()
        if self._honest:
            self._honest.begin()

    # ---- What is judged ----

    def note(self, text):
        self.verdict.note(text)

    def sent(self, connections):
        connections = connections if isinstance(connections, list) else [connections]
        total = sum(connection.sent for connection in connections)
        self.note(f"{total / 1e6:.1f} MB sent" if total > 1e6 else f"{total / 1e3:.1f} KB sent")

    def check(self, ok, text, want):
        """Judged unless other attacks share the server."""
        if self.shared:
            self.note(text)
        else:
            self.verdict.check(ok, text, want)

    def exact(self, ok, text, want):
        """Nothing may be granted wrongly, whatever else happens: always judged."""
        self.verdict.check(ok, text, want)

    def rss(self, bound_mb):
        if not self.shared:
            self.verdict.at_most(
                self.target.memory_mb("VmHWM") - self._rss_at_start, bound_mb, "RSS +%s MB")

    def released(self, when, attackers=(), wait_s=10):
        """Within 10 s, the memory is back to within 16 MB or 10 % of that at the start."""
        if self.shared:
            return
        bound = max(16, self._rss_at_start / 10)
        until = time.monotonic() + wait_s
        while (growth :=
               self.target.memory_mb() - self._rss_at_start) > bound and time.monotonic() < until:
            time.sleep(0.2)
            for attacker in attackers:
                attacker.read()
        self.verdict.at_most(growth, bound, f"%s MB kept {when}")

    def end(self, p99=50, **at_most_ms):
        """Judges the server, and, with --measure, the honest caller's latency."""
        if self.shared:
            return
        if not self.target.alive():
            self.verdict.check(False, "the server is gone", "a server that stays")
            return
        if self._honest:
            self.judge_honest(self._honest.end(), {"p99": p99, **at_most_ms})
        self._judge_steps()
        self.note(f"server CPU {self.target.cpu_s() - self._cpu_at_start:.1f} s")

    def wrong_grants(self, ledger):
        wrong = ledger.wrong()
        self.exact(
            not wrong, "; ".join(wrong[:3]) if wrong else
            f"{ledger.count()} permits in {len(ledger.grants)} buckets checked in every window",
            "no window with more than its limit")

    def judge_honest(self, seen, at_most_ms, who="honest"):
        failed = sum(seen["failed"].values())
        # A call that ran into its deadline may have been decided.
        if seen["lost"] is not None and not self.target.redis:
            undecided = seen["failed"].get("DEADLINE_EXCEEDED", 0)
            if seen["lost"] > undecided:
                self.exact(False, f"{seen['lost']} permits taken from the honest caller",
                           "no permits taken without a grant")
        codes = "".join(f", {count} {code}" for code, count in seen["failed"].items())
        lost = "?" if seen["lost"] is None else seen["lost"]
        if seen["lost"] and self.target.redis and self.flushed:
            # After a loss of data a bucket is taken for empty, so it lacks all that it held.
            lost = f"FLUSHALL emptied the bucket, so {lost}"
        text = (
            f"{who} p50 {seen['p50']:.2f}, p99 {seen['p99']:.1f}, max {seen['max']:.0f} ms over "
            f"{seen['calls']} calls ({failed} failed{codes}; {lost} permits taken without a grant)")
        if not self.variant.measure:
            self.note(text)
            return
        self.verdict.check(
            all(seen[name] <= bound for name, bound in at_most_ms.items()) and
            failed <= seen["calls"] // 100, text,
            ", ".join(f"{who} {name} <= {bound} ms" for name, bound in at_most_ms.items()) +
            ", at most 1 % of its calls failing")

    def _judge_steps(self):
        try:
            stats = self.target.stats()
        except grpc.RpcError as e:
            self.verdict.check(False, f"GetStats: {e.code().name}", "GetStats answers")
            return
        if not getattr(stats, "steps", None):
            self.note("GetStats has no step times")
            return
        kind, longest_ms = longest_step(stats)
        bound = STEP_ASSERTED_MEASURED_MS if self.variant.measure else STEP_ASSERTED_MS
        self.verdict.check(longest_ms <= bound,
                           f"longest step ({kind}) <= {longest_ms:.3g} ms, asserted {bound} ms",
                           STEPS, longest_ms)


def longest_step(stats):
    """The kind of the longest step in GetStats, and its upper bound (ms)."""
    longest = ("none", 0.0)
    for step in stats.steps:
        used = [upper for upper, count in zip(step.time.upper_ns, step.time.counts) if count]
        if sum(step.time.counts) < step.time.count:
            used.append(float("inf"))
        if used and max(used) / 1e6 > longest[1]:
            longest = (step.kind, max(used) / 1e6)
    return longest


# ---- Requests ----

def acquisition(*charges, wait_s=0, hold=False, receipt=False, settle_within_s=0):
    """`charges`: (limit, key) or (limit, key, permits)."""
    request = pb.AcquireRequest(charges=[
        pb.Charge(limit=limit, key=key, permits=permits[0] if permits else None)
        for limit, key, *permits in charges], hold=hold, want_receipt=receipt)
    if wait_s:
        request.max_wait.FromMilliseconds(round(wait_s * 1000))
    if settle_within_s:
        request.settle_within.FromSeconds(settle_within_s)
    return request


def batch(one, count=4096):
    return pb.AcquireBatchRequest(acquisitions=[one] * count)


def batch_message(*charges, count=4096, compress=True, **options):
    """A message with `count` equal acquisitions, whose grants a ledger can record."""
    return message(batch(acquisition(*charges, **options), count),
                   compress=compress,
                   charges=charges,
                   answer=pb.AcquireBatchResponse)


def buckets(limit, count, key_bytes=512, first=0):
    return [pb.QueryRequest.Bucket(limit=limit, key=str(first + i).rjust(key_bytes, "k"))
            for i in range(count)]


def acquire(run, stub, *charges, timeout_s=3, **options):
    """An error counts as a denial."""
    asked_at = time.monotonic()
    try:
        answer = stub.Acquire(acquisition(*charges, **options), timeout=timeout_s)
    except grpc.RpcError:
        return pb.AcquireResponse()
    if run.ledger and answer.granted:
        run.ledger.add(charges, asked_at, time.monotonic(), wait_s=seconds(answer.wait))
    return answer


def acquire_batch(run, stub, *charges, count=4096, timeout_s=30, **options):
    """The answers of those that were granted."""
    asked_at = time.monotonic()
    try:
        results = stub.AcquireBatch(batch(acquisition(*charges, **options), count),
                                    timeout=timeout_s).results
    except grpc.RpcError:
        return []
    if run.ledger:
        run.ledger.add_results(charges, results, asked_at, time.monotonic())
    return [r.response for r in results if r.response.granted]


def seconds(duration):
    return duration.seconds + duration.nanos * 1e-9
