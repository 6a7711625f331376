#!/usr/bin/env python3
"""Requests that no Envoy sends: each gets an answer or a clear error, and the next one is served.

usage: bad_input_test.py [--build DIR] [--limiter PROGRAM] [TEST ...]
"""
import argparse
import os
import sys
import tempfile
import unittest

import grpc

import grpc_client
from limiter import Limiter, Runtime, command_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DAY = {"unit": "day", "requests_per_unit": 5}
# "one" and "two" replace each other.
CONFIG = [{"domain": "test", "descriptors": [
    {"key": "user", "rate_limit": DAY},
    {"key": "path", "value": "*a*a*a*a*b", "share_threshold": True, "rate_limit": DAY},
    {"key": "a", "rate_limit": {**DAY, "name": "one", "replaces": [{"name": "two"}]}},
    {"key": "b", "rate_limit": {**DAY, "name": "two", "replaces": [{"name": "one"}]}}]}]
MOST_HITS = 2**64 - 1


def asked(*descriptors, domain="test", **more):
    return {"domain": domain, "descriptors": list(descriptors), **more}


def user(name, **more):
    return {"entries": [{"key": "user", "value": name}], **more}


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="sluice-envoy-test-")
        runtime = Runtime(f"{cls.folder.name}/runtime")
        runtime.publish(CONFIG)
        cls.limiter = Limiter(OPTIONS.limiter, cls.folder.name, runtime)
        messages = grpc_client.Messages(OPTIONS.proto)
        address = f"127.0.0.1:{cls.limiter.grpc_port}"
        cls.client = grpc_client.Client("service", address, messages)
        cls.raw = cls.client.channel.unary_unary(grpc_client.METHOD)

    @classmethod
    def tearDownClass(cls):
        cls.client.channel.close()
        cls.limiter.stop()
        cls.folder.cleanup()

    def tearDown(self):
        answer = self.client.ask(asked(user(self.id())))
        self.assertEqual((answer["overall"], answer["statuses"][0]["remaining"]), ("OK", 4))

    def codes(self, request):
        answer = self.client.ask(request)
        self.assertNotIn("error", answer)
        return [status["code"] for status in answer["statuses"]]

    def error(self, message):
        with self.assertRaises(grpc.RpcError) as raised:
            self.raw(message, timeout=60)
        return raised.exception.code().name, raised.exception.details()

    def encoded(self, request):
        return self.client.message(request).SerializeToString()

    def test_no_domain_and_no_descriptors(self):
        self.assertEqual(self.error(b""), ("UNKNOWN", "rate limit domain must not be empty"))
        self.assertEqual(self.error(self.encoded({"domain": "test"})),
                         ("UNKNOWN", "rate limit descriptor list must not be empty"))

    def test_descriptors_without_entries(self):
        self.assertEqual(self.codes(asked({}, {"entries": []}, {"entries": [{}]})), ["OK"] * 3)

    def test_a_thousand_descriptors(self):
        found = self.codes(asked(*[user("many") for _ in range(1000)]))
        self.assertEqual(found, ["OK"] * 5 + ["OVER_LIMIT"] * 995)

    def test_values_of_64_kib(self):
        # They are told apart although they begin alike.
        long = "x" * 65536
        for name in (long + "1", long + "2"):
            found = [self.codes(asked(user(name)))[0] for _ in range(6)]
            self.assertEqual(found, ["OK"] * 5 + ["OVER_LIMIT"])

    def test_a_long_value_for_a_pattern_with_many_stars(self):
        descriptor = {"entries": [{"key": "path", "value": "a" * 60000}]}
        self.assertEqual(self.codes(asked(descriptor)), ["OK"])

    def test_text_that_is_not_utf8(self):
        message = self.encoded(asked(user("@@@@"))).replace(b"@@@@", b"\xff\xfe\xc0\x80")
        code, text = self.error(message)
        self.assertEqual(code, "INVALID_ARGUMENT")
        self.assertRegex(text, "value.*UTF-8")

    def test_bytes_that_are_no_message(self):
        self.assertEqual(self.error(b"\x0a\xff\xff\xff\xff\x0f")[0], "INVALID_ARGUMENT")

    def test_a_limit_without_a_known_unit(self):
        for unit in ("UNKNOWN", 99):
            message = self.encoded(asked(user("u", limit={"requests_per_unit": 5, "unit": unit})))
            code, text = self.error(message)
            self.assertEqual(code, "INVALID_ARGUMENT")
            self.assertIn("limit.unit", text)

    def test_many_hits(self):
        self.assertEqual(self.codes(asked(user("h32"), hits_addend=2**32 - 1)), ["OVER_LIMIT"])
        for _ in range(2):
            self.assertEqual(self.codes(asked(user("h64", hits_addend=MOST_HITS))), ["OVER_LIMIT"])
        self.assertEqual(self.codes(asked(user("h64"))), ["OVER_LIMIT"])

    def test_more_hits_given_back_than_counted(self):
        for _ in range(3):
            self.codes(asked(user("back")))
        self.assertEqual(self.codes(asked(user("back", hits_addend=MOST_HITS, is_negative_hits=True))),
                         ["OK"])
        found = [self.codes(asked(user("back")))[0] for _ in range(6)]
        self.assertEqual(found, ["OK"] * 5 + ["OVER_LIMIT"])

    def test_limits_that_replace_each_other(self):
        both = asked({"entries": [{"key": "a", "value": "1"}]}, {"entries": [{"key": "b", "value": "1"}]})
        answer = self.client.ask(both)
        self.assertEqual([status["limit"] for status in answer["statuses"]], [None, None])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--limiter", help="the program (default: bin/ratelimit of the build folder)")
    parser.add_argument("--proto", default=os.path.join(ROOT, "proto"))
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.limiter = command_of(OPTIONS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
