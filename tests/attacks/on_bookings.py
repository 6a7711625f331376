"""Attacks on limits that others share: bookings far ahead, invented keys, clocks."""
import struct
import subprocess
import tempfile
import threading
import time

import grpc

from limits import DAY_S
from run import acquire, acquire_batch, acquisition, attack, seconds
from server import HERE, pb


def decides_within(run, stub, requests, wait_s):
    """How many of the requests are granted, or denied for at most 10 s, and the longest denial."""
    until = time.monotonic() + wait_s
    while True:
        time.sleep(0.5)
        answers = [acquire(run, stub, *charges) for charges in requests]
        # `daily` refills slowly, so that a denial for less than the time of one permit is right.
        decided = [a for a in answers if a.granted or 0 < seconds(a.retry_after) <= 10]
        if len(decided) == len(requests) or time.monotonic() > until:
            return len(decided), max(seconds(a.retry_after) for a in answers)


@attack(redis=True)
def booked_floor(run):
    """With Redis: books one key of one limit 23 h ahead; then Redis loses its data."""
    server = run.server(redis=True, honest=False)
    stub = server.stub()
    others = [[(limit, "other")] for limit in ("api", "big", "daily")]
    if not all(acquire(run, stub, *charges).granted for charges in others):
        raise RuntimeError("denied before the attack")
    run.begin()
    ahead = [acquire(run, stub, ("slow", "attacker"), wait_s=DAY_S) for _ in range(24)]
    run.note(
        f"one key booked {max(seconds(r.wait) for r in ahead) / 3600:.0f} h ahead, then FLUSHALL")
    start = time.monotonic()
    server.command_redis("FLUSHALL")
    decided, denied_s = decides_within(run, stub, others, 30)
    run.check(
        decided == len(others),
        f"{decided} of {len(others)} other limits decide {time.monotonic() - start:.0f} s later "
        f"(denied for up to {denied_s / 3600:.1f} h)", "all other limits within 30 s")
    closed = acquire(run, stub, ("slow", "attacker"))
    run.exact(not closed.granted, f"the booked key is {'granted' if closed.granted else 'closed'}",
              "the booked key stays closed")
    run.end()


@attack(redis=True)
def booked_parent_floor(run):
    """With Redis: books a child, and so its parent, 20 h ahead; Redis loses its data twice."""
    server = run.server(redis=True, honest=False)
    stub = server.stub()
    others = [[("api", "other")], [("big", "other")]]
    if not all(acquire(run, stub, *charges).granted for charges in others):
        raise RuntimeError("denied before the attack")
    run.begin()
    ahead = [acquire(run, stub, ("far_child", "attacker"), wait_s=DAY_S) for _ in range(21)]
    run.note(
        f"booked {max(seconds(r.wait) for r in ahead) / 3600:.0f} h ahead, then FLUSHALL twice")
    server.command_redis("FLUSHALL")
    time.sleep(1)
    server.command_redis("FLUSHALL")
    decided, denied_s = decides_within(run, stub, others, 40)
    run.check(decided == len(others), f"{decided} of {len(others)} other limits decide "
              f"(denied for up to {denied_s / 3600:.1f} h)", "all other limits within 40 s")
    for name in ("far_child", "far_parent"):
        closed = acquire(run, stub, (name, "" if name == "far_parent" else "attacker"))
        run.exact(not closed.granted, f"{name} is {'granted' if closed.granted else 'closed'}",
                  "booked buckets stay closed")
    run.end()


@attack()
def hoard(run):
    """One caller books the shared bucket of a parent limit to the last second of 24 h ahead."""
    server = run.server()
    stub = server.stub()
    run.begin()
    start = time.monotonic()
    booked = sum(len(acquire_batch(run, stub, ("parent", "", 5000), wait_s=DAY_S))
                 for _ in range(run.n(22)))
    run.note(f"{booked} seconds of the parent booked in {time.monotonic() - start:.1f} s")
    start = time.monotonic()
    while True:
        answer = acquire(run, stub, ("child", "victim"))
        if answer.granted or time.monotonic() > start + 10:
            break
        time.sleep(0.1)
    waited = time.monotonic() - start
    run.check(
        answer.granted and waited <= 3,
        f"a caller of another key granted after {waited:.1f} s" if answer.granted else
        f"a caller of another key denied, retry after {seconds(answer.retry_after) / 3600:.1f} h",
        "granted within 3 s: the 2 s of max_wait, and 1 s")
    run.end()


@attack()
def hidden_parent(run):
    """Charges a limit directly that only its child limits may charge, alone and beside a child."""
    server = run.server()
    stub = server.stub()
    run.begin()
    refused = 0
    tries = [("hidden", ""), ("hidden", "k"), ("hidden", "", 10)]
    for charge in tries:
        for wait_s in (0, 3600):
            refused += not acquire(run, stub, charge, wait_s=wait_s).granted
        refused += not acquire_batch(run, stub, ("visible", "k"), charge, count=16)
    run.check(refused == 9, f"{refused} of 9 direct charges refused", "all refused")
    served = acquire(run, stub, ("visible", "victim"))
    run.check(served.granted, f"a caller of the child is {'served' if served.granted else 'denied'}",
              "served")
    run.end()


@attack()
def booking_flood(run):
    """Bookings of many keys by one connection, with receipts, until the server refuses."""
    server = run.server()
    stub = server.stub()
    run.begin()
    booked = 0
    for first in range(0, run.n(400_000), 4096):
        requests = [
            acquisition(("slow", f"f{(first + i) // 16}"), wait_s=DAY_S) for i in range(4096)
        ]
        try:
            answer = stub.AcquireBatch(pb.AcquireBatchRequest(acquisitions=requests), timeout=20)
        except grpc.RpcError as e:
            run.note(f"refused: {e.code().name}")
            break
        granted = sum(r.response.granted for r in answer.results)
        booked += granted
        if granted == 0:
            break
    run.note(f"{booked} bookings by one caller")
    run.rss(256)
    other = server.stub()
    served = sum(acquire(run, other, ("p1", f"own-{i}", 10), wait_s=5).granted for i in range(20))
    run.check(served == 20, f"{served} of 20 bookings of another caller served", "20 of 20")
    run.end()


@attack()
def key_flood(run):
    """Invented keys of one limit until the table is full."""
    server = run.server("--max_buckets=20000")
    stub = server.stub()
    run.begin()
    taken = flood_keys(stub, run.n(40960), 0)
    run.note(f"{taken} keys of one limit in a table of 20000")
    served = sum(acquire(run, stub, ("api", f"new-{i}")).granted for i in range(20))
    run.check(served == 20, f"{served} of 20 new keys of another limit served", "20 of 20 served")
    run.end()


@attack()
def long_keys(run):
    """Invented keys of 512 bytes with a budget of 128 MB: the process stays within it."""
    server = run.server("--memory_limit=128MiB")
    stub = server.stub()
    run.begin()
    taken = flood_keys(stub, run.n(409_600), 500)
    run.note(f"{taken} keys of 512 bytes")
    run.rss(160)
    served = sum(acquire(run, stub, ("api", f"new-{i}")).granted for i in range(20))
    run.check(served == 20, f"{served} of 20 new keys of another limit served", "20 of 20 served")
    run.end()


def flood_keys(stub, count, padding):
    taken = 0
    for first in range(0, count, 4096):
        keys = pb.AcquireBatchRequest(acquisitions=[
            acquisition(("daily", f"invented-{i}".ljust(padding, "k")))
            for i in range(first, first + 4096)
        ])
        try:
            taken += sum(r.response.granted for r in stub.AcquireBatch(keys, timeout=30).results)
        except grpc.RpcError:
            break
    return taken


@attack()
def window_clock(run):
    """Takes all permits of a fixed_window, then sets the wall clock back by 5 s."""
    with tempfile.TemporaryDirectory() as folder:
        offset = WallClock(folder)
        server = run.server(honest=False, env=offset.environment)
        if run.shared:
            offset = WallClock(path=server.wall_offset_file)
        stub = server.stub()
        granted = {}  # by the window's number
        key = f"k{time.monotonic_ns()}"

        def take():
            while stub.Acquire(acquisition(("window", key)), timeout=5).granted:
                number = int(offset.now() // 10)
                granted[number] = granted.get(number, 0) + 1

        def exists():
            bucket = pb.QueryRequest.Bucket(limit="window", key=key)
            return stub.Query(pb.QueryRequest(buckets=[bucket]), timeout=5).buckets[0].exists

        run.begin()
        time.sleep(10 - offset.now() % 10 + 0.2)  # into a window
        number = int(offset.now() // 10)
        take()
        time.sleep(8)
        offset.set(
            -5)  # the window goes on for 7 s; the server's steady clock says that it ends in 2
        while exists() and offset.now() < number * 10 + 9:
            time.sleep(0.2)
        dropped = not exists()
        take()
        run.note(f"bucket {'dropped' if dropped else 'kept'} after the clock was set back")
        run.exact(granted[number] <= 5, f"{granted[number]} permits granted in one window",
                  "at most 5")
        run.end()


class WallClock:
    """The wall clock of a server that runs with clock_shim.c."""

    def __init__(self, folder=None, path=None):
        self._path = path or f"{folder}/offset"
        if folder:
            shim = f"{folder}/shim.so"
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, f"{HERE}/clock_shim.c"],
                           check=True)
            self.environment = {"LD_PRELOAD": shim, "WALL_OFFSET_FILE": self._path}
            self.set(0)
        self.path = self._path
        with open(self._path, "rb") as file:
            self._offset_s = struct.unpack("<q", file.read(8))[0]

    def set(self, offset_s):
        self._offset_s = offset_s
        with open(self._path, "r+b" if self._exists() else "wb") as file:
            file.write(struct.pack("<q", offset_s))

    def now(self):
        return time.time() + self._offset_s

    def _exists(self):
        try:
            open(self._path, "rb").close()
            return True
        except FileNotFoundError:
            return False


@attack(redis=True)
def redis_rewrite(run):
    """With Redis: 12 buckets with 16,384 bookings each, to which callers add bookings and give them
    back, while an honest caller uses another limit."""
    server = run.server(redis=True)
    stub = server.stub()
    keys = [f"k{i}" for i in range(run.n(12))]
    booked = 0
    for key in keys:
        for _ in range(8):  # 16384 bookings: as many as a bucket takes
            booked += len(acquire_batch(run, stub, ("booked", key, 5000), count=2048, wait_s=DAY_S))
    run.note(f"{booked} bookings in {len(keys)} buckets")
    run.watch_honest_alone()
    stop = threading.Event()

    def churn():
        own = server.stub()
        one_more = pb.AcquireBatchRequest(
            acquisitions=[acquisition(("booked", key, 100), wait_s=DAY_S) for key in keys])
        while not stop.is_set():
            try:
                for result in own.AcquireBatch(one_more, timeout=10).results:
                    if result.response.receipt:
                        own.Refund(pb.RefundRequest(receipt=result.response.receipt), timeout=10)
            except grpc.RpcError:
                time.sleep(0.001)

    run.begin()
    attackers = [threading.Thread(target=churn, daemon=True) for _ in keys]
    for attacker in attackers:
        attacker.start()
    time.sleep(8)
    stop.set()
    for attacker in attackers:
        attacker.join(12)
    run.end(p50=1, max=10)
