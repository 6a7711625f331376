"""The grants that callers saw, and the check that no window holds more of them than its limit
allows.

A caller knows only that the server decided between the moment it asked and the moment it was
answered. So a grant counts for a window only if both moments (plus its wait) lie within the
window. Grants that were refunded, and permits for which no answer came, are not in the ledger:
they make the check milder, never wrong.
"""
import json
from collections import defaultdict

from limits import LIMITS

# Moments are rounded by this much (the server's clock and ours are the same one), in seconds.
ROUNDING_S = 1e-3


class Ledger:
    """Grants by bucket: (earliest moment, latest moment, permits)."""

    def __init__(self):
        self.grants = defaultdict(list)

    def add(self, charges, asked_at, answered_at, count=1, wait_s=0):
        """`charges`: (limit, key) or (limit, key, permits); `count` acquisitions of the same
        kind."""
        early, late = asked_at + wait_s, answered_at + wait_s
        for limit, key, *permits in charges:
            for name, owner in ((limit, key), *((parent, "") for parent in LIMITS[limit].charges)):
                self.grants[f"{name} {owner}"].append(
                    (early, late, count * (permits[0] if permits else 1)))

    def add_results(self, charges, results, asked_at, answered_at):
        """The results of a batch of equal acquisitions."""
        now = 0
        for result in results:
            if not result.response.granted:
                continue
            wait = result.response.wait
            if wait.seconds or wait.nanos:
                self.add(charges, asked_at, answered_at, 1, wait.seconds + wait.nanos * 1e-9)
            else:
                now += 1
        if now:
            self.add(charges, asked_at, answered_at, now)

    def save(self, path):
        with open(path, "w") as file:
            json.dump(self.grants, file)

    def load(self, path):
        with open(path) as file:
            for bucket, grants in json.load(file).items():
                self.grants[bucket] += grants

    def count(self):
        return sum(permits for grants in self.grants.values() for _, _, permits in grants)

    def wrong(self):
        """A line for each bucket that granted more than its limit allows in some window."""
        findings = []
        for bucket, grants in sorted(self.grants.items()):
            limit = LIMITS[bucket.split(" ")[0]]
            if limit.algorithm == "token_bucket":
                excess = excess_of_token_bucket(grants, limit.capacity,
                                                limit.permits / limit.period_s)
            elif limit.algorithm in ("sliding_log", "sliding_window"):
                excess = most_in_period(grants, limit.period_s - ROUNDING_S) - limit.permits
            else:
                continue  # depends on the wall clock: window_clock counts by itself
            if excess > 0:
                findings.append(f"{bucket}: {excess:.1f} permits too many in a window")
        return findings


def most_in_period(grants, period_s):
    """The most permits that were surely granted within one window of this length."""
    by_early = sorted(range(len(grants)), key=lambda i: grants[i][0])
    by_late = sorted(range(len(grants)), key=lambda i: grants[i][1])
    counted = [False] * len(grants)
    most = total = entering = 0
    for first in by_early:
        start = grants[first][0]
        while entering < len(by_late) and grants[by_late[entering]][1] <= start + period_s:
            grant = by_late[entering]
            if grants[grant][0] >= start:
                counted[grant] = True
                total += grants[grant][2]
            entering += 1
        most = max(most, total)
        if counted[first]:
            total -= grants[first][2]
    return most


def excess_of_token_bucket(grants, burst, rate):
    """By how much the fullest window exceeds burst + rate * its length. Negative: by none.

    For each end of a window, in order: the maximum over all starts a of (permits since a) + rate
    * a. A segment tree over the starts holds it: a grant adds its permits to all starts not
    after it.
    """
    starts = sorted({grant[0] for grant in grants})
    if not starts:
        return 0
    index = {start: i for i, start in enumerate(starts)}
    origin = starts[0]
    size = 1 << (len(starts) - 1).bit_length()
    best = [float("-inf")] * (2 * size)  # a start counts once a grant at it was added
    added = [0.0] * (2 * size)
    worst = float("-inf")
    for early, late, permits in sorted(grants, key=lambda grant: grant[1]):
        # Adds to the starts 0..index: the leaf, and what lies left of its path to the root.
        node = size + index[early]
        added[node] += permits
        best[node] = rate * (early - origin) + added[node]
        while node > 1:
            if node & 1:
                best[node - 1] += permits
                added[node - 1] += permits
            node >>= 1
            best[node] = max(best[2 * node], best[2 * node + 1]) + added[node]
        worst = max(worst, best[1] - burst - rate * (late - origin + ROUNDING_S))
    return worst
