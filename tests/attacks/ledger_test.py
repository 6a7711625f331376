#!/usr/bin/env python3
"""Compares the ledger's check of windows with one that looks at every pair of moments."""
import random
import unittest

from ledger import ROUNDING_S, Ledger, excess_of_token_bucket, most_in_period


def slow_excess(grants, burst, rate):
    return max(
        sum(permits for early, late, permits in grants if start <= early and late <= end) - burst -
        rate * (end - start + ROUNDING_S)
        for start, _, _ in grants for _, end, _ in grants if end >= start)


def slow_most(grants, period_s):
    return max(
        sum(permits for early, late, permits in grants if start <= early and late <= start + period_s)
        for start, _, _ in grants)


def random_grants(random_, count):
    grants = []
    for _ in range(count):
        early = random_.randrange(100) / 10
        grants.append((early, early + random_.randrange(20) / 10, random_.randrange(1, 9)))
    return grants


class LedgerTest(unittest.TestCase):

    def test_checks_as_the_slow_reference(self):
        random_ = random.Random(1)
        for _ in range(300):
            grants = random_grants(random_, random_.randrange(1, 40))
            burst, rate = random_.randrange(20), random_.randrange(1, 10)
            self.assertAlmostEqual(excess_of_token_bucket(grants, burst, rate),
                                   slow_excess(grants, burst, rate))
            self.assertEqual(most_in_period(grants, 2.5), slow_most(grants, 2.5))

    def test_finds_one_permit_too_many(self):
        ledger = Ledger()
        for i in range(20):  # the burst of `tight`
            ledger.add([("tight", "k")], i / 1e6, i / 1e6)
        self.assertEqual(ledger.wrong(), [])
        ledger.add([("tight", "k")], 1e-4, 1e-3)
        self.assertEqual(len(ledger.wrong()), 1)

    def test_counts_grants_of_a_child_for_its_parent(self):
        ledger = Ledger()
        ledger.add([("child", "k", 7)], 0, 1, count=2)
        self.assertEqual(ledger.grants["parent "], [(0, 1, 14)])

    def test_dates_a_booking_at_its_grant_time(self):
        ledger = Ledger()
        for i in range(100):
            ledger.add([("tight_log", "k")], 0, 0.1)
            ledger.add([("tight_log", "k")], 0, 0.1, wait_s=2)
        self.assertEqual(ledger.wrong(), [])
        ledger.add([("tight_log", "k")], 0, 0.1, wait_s=1)
        self.assertEqual(len(ledger.wrong()), 1)


if __name__ == "__main__":
    unittest.main()
