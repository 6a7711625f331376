#!/usr/bin/env python3
"""The programs of docs/recipes, with the limits of their pages, against a real server.

usage: recipes_test.py SOURCE_DIR BIN_DIR [TEST ...]
"""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from fakes import Link, Model, Origin, Provider, Redis, Sluiced, WAIT_S, eventually

SOURCE, BINARIES = (os.path.abspath(path) for path in sys.argv[1:3])
RECIPES = os.path.join(SOURCE, "docs/recipes")
needs_redis = unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")


class RecipeTest(unittest.TestCase):
    """A server with the limits of `recipe`, for each test."""
    recipe = ""

    def setUp(self):
        with open(os.path.join(RECIPES, f"{self.recipe}.yaml")) as file:
            self.limits = file.read()
        self.server = None
        self.processes = []
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-recipe-")
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.stop)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait(WAIT_S)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        if self.server is not None:
            self.server.close()

    def start_server(self, *flags, **shorter):
        """Starts sluiced. `shorter`: fields of the limits with another value, for quick tests."""
        limits = self.limits
        for field, (of_page, of_test) in shorter.items():
            self.assertIn(f"{field}: {of_page}", limits)
            limits = limits.replace(f"{field}: {of_page}", f"{field}: {of_test}")
        self.server = Sluiced(os.path.join(BINARIES, "sluiced"), limits, *flags)
        return self.server

    def start(self, *command, **options):
        process = subprocess.Popen(command, **options)
        self.processes.append(process)
        return process

    def fake(self, made):
        self.addCleanup(made.close)
        return made


class LlmGatewayTest(RecipeTest):
    recipe = "llm_gateway"

    def start_gateway(self, **shorter):
        server = self.start_server(**shorter)
        self.model = self.fake(Model())
        self.addCleanup(self.model.proceed.set)
        self.link = self.fake(Link(server.http))
        with open(os.path.join(RECIPES, "llm_gateway.py")) as file:
            program = file.read()
        if "hold_for" in shorter:  # reports as much more often
            self.assertIn("\nREPORT_EVERY_S = 5 ", program)
            program = program.replace("\nREPORT_EVERY_S = 5 ", "\nREPORT_EVERY_S = 0.5 ")
        path = os.path.join(self.folder.name, "llm_gateway.py")
        with open(path, "w") as file:
            file.write(program)
        self.gateway = self.start(sys.executable, path, "0", self.model.address,
                                  self.link.address, stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.DEVNULL)
        self.address = self.gateway.stdout.readline().split()[-1]

    def begin(self, tenant="a", **asked):
        """Sends a request. Returns the response, whose body is not read yet."""
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"X-Tenant": tenant})
        return connection.getresponse()

    def ask(self, tenant="a", **asked):
        """Returns (status, body) of a request that is answered whole."""
        response = self.begin(tenant, **asked)
        return response.status, response.read().decode()

    def owed(self, tenant="a"):
        """Permits that are taken of the tenant's tokens."""
        return 100_000 - self.server.remaining("tokens", tenant)

    def held(self, tenant="a"):
        return int(self.server.bucket("in_flight", tenant)["holds"])

    def test_settles_with_the_usage_that_the_model_reports(self):
        self.start_gateway(rate=("100000/m", "100000/365d"))
        status, text = self.ask(tokens=7, total=1234, max_tokens=4000)
        self.assertEqual(status, 200)
        self.assertEqual(text.count('"content"'), 7)
        eventually(lambda: self.held() == 0, "the slot is free")
        self.assertAlmostEqual(self.owed(), 1234, delta=2)

    def test_reserves_estimates_so_that_calls_in_flight_do_not_overshoot(self):
        self.start_gateway(rate=("100000/m", "100000/365d"))
        responses = [self.begin(tokens=1, total=100, max_tokens=30_000, hang=True)
                     for _ in range(4)]
        self.assertEqual([one.status for one in responses], [200, 200, 200, 429])
        self.assertGreater(int(responses[3].headers["Retry-After"]), 0)
        self.model.proceed.set()
        for one in responses:
            one.read()
        eventually(lambda: self.held() == 0, "the slots are free")
        self.assertAlmostEqual(self.owed(), 300, delta=2)

    def test_has_at_most_twenty_calls_of_a_tenant_in_flight(self):
        self.start_gateway()
        statuses = []

        def one():
            statuses.append(self.ask(tokens=1, total=10, max_tokens=10, hang=True)[0])

        threads = [threading.Thread(target=one) for _ in range(30)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(statuses) == 10, "ten are refused")
        self.assertEqual(statuses, [429] * 10)
        self.assertEqual(self.held(), 20)
        status, _ = self.ask("another tenant", tokens=1, total=10)
        self.assertEqual(status, 200)
        self.model.proceed.set()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertEqual(statuses.count(200), 20)
        self.assertEqual(self.model.most, 21)

    def test_excess_is_owed_and_a_stream_is_charged_while_it_runs(self):
        self.start_gateway(rate=("100000/m", "100000/365d"), hold_for=("15s", "5s"))
        response = self.begin(tokens=700, total=5000, max_tokens=200, hang=True)
        eventually(lambda: self.owed() >= 700, "the stream's tokens are charged")
        self.assertEqual(self.held(), 1)
        time.sleep(6)  # longer than hold_for: the slot is renewed
        self.assertEqual(self.held(), 1)
        self.model.proceed.set()
        response.read()
        eventually(lambda: self.held() == 0, "the slot is free")
        self.assertAlmostEqual(self.owed(), 5000, delta=2)

    def test_refunds_a_call_that_the_model_refused(self):
        self.start_gateway(rate=("100000/m", "100000/365d"))
        status, _ = self.ask(fail=True, tokens=0, total=0)
        self.assertEqual(status, 500)
        eventually(lambda: self.held() == 0, "the slot is free")
        self.assertEqual(self.owed(), 0)
        self.assertEqual(self.server.remaining("requests", "a"), 60)

    def test_charges_what_was_streamed_when_the_client_leaves(self):
        self.start_gateway(rate=("100000/m", "100000/365d"))
        response = self.begin(tokens=300, total=350, max_tokens=4000, hang=True)
        for _ in range(600):  # an event and an empty line each
            self.assertTrue(response.readline())
        response.close()
        self.model.proceed.set()  # the gateway notices at the next write
        eventually(lambda: self.held() == 0, "the slot is free")
        self.assertGreaterEqual(self.owed(), 300)
        self.assertLessEqual(self.owed(), 350)

    def test_lost_answers_of_settle_are_asked_for_again(self):
        self.start_gateway(rate=("100000/m", "100000/365d"))
        response = self.begin(tokens=1, total=50, max_tokens=4000, hang=True)
        self.link.lose = 3
        self.model.proceed.set()
        response.read()
        eventually(lambda: self.held() == 0 and self.link.lost == 3, "the slot is free")
        self.assertAlmostEqual(self.owed(), 50, delta=2)

    def test_estimate_of_a_killed_gateway_stays_charged_and_its_slot_comes_back(self):
        self.start_gateway(rate=("100000/m", "100000/365d"), hold_for=("15s", "5s"))
        response = self.begin(tokens=1, total=50, max_tokens=4000, hang=True)
        eventually(lambda: self.held() == 1, "the call is in flight")
        self.gateway.kill()
        self.gateway.wait(WAIT_S)
        response.close()
        eventually(lambda: self.held() == 0, "the slot is free")
        self.assertGreaterEqual(self.owed(), 4000)

    def test_calls_of_a_server_that_started_again_are_ended_and_charged(self):
        self.start_gateway(rate=("100000/m", "100000/365d"), hold_for=("15s", "1500ms"))
        response = self.begin(tokens=600, total=700, max_tokens=4000, hang=True)
        self.server.close(kill=True)
        self.start_server(rate=("100000/m", "100000/365d"), hold_for=("15s", "1500ms"))
        self.assertEqual(self.owed(), 0)
        self.link.target = self.server.http
        response.read()  # the gateway ends the stream, since the slot is lost
        eventually(lambda: self.owed() >= 600, "the tokens are charged by force")
        self.assertLess(self.owed(), 1000)
        self.assertEqual(self.held(), 0)

    def test_refuses_while_no_server_answers(self):
        self.start_gateway()
        self.link.target = "127.0.0.1:1"
        status, _ = self.ask(tokens=1, total=1)
        self.assertEqual(status, 503)
        self.assertEqual(self.model.served, 0)

    def test_refuses_requests_without_a_tenant(self):
        self.start_gateway()
        self.assertEqual(self.ask("", tokens=1, total=1)[0], 401)

    def test_refuses_an_estimate_that_never_fits(self):
        self.start_gateway()
        status, text = self.ask(tokens=1, total=1, max_tokens=1_000_000)
        self.assertEqual(status, 400)
        self.assertIn("could never grant more at once", text)


class JobRunnerTest(RecipeTest):
    recipe = "job_runner"
    # Writes a byte when it begins and one when it ends; runs until the file `go` is there.
    JOB = 'printf b >> log; while [ ! -e go ]; do sleep 0.05; done; printf e >> log'

    def start_job(self, tenant, job=None, link=None, **options):
        env = {**os.environ, "SLUICE_SERVER": link.address if link else self.server.data,
               "PATH": BINARIES + os.pathsep + os.environ["PATH"]}
        return self.start(os.path.join(RECIPES, "job_runner.sh"), tenant, "sh", "-c",
                          job or self.JOB, cwd=self.folder.name, env=env,
                          stderr=subprocess.DEVNULL, **options)

    def log(self):
        try:
            with open(os.path.join(self.folder.name, "log")) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def go(self):
        with open(os.path.join(self.folder.name, "go"), "w"):
            pass

    def test_runs_at_most_five_jobs_of_a_tenant_and_the_others_later(self):
        self.start_server()
        jobs = [self.start_job("a") for _ in range(12)]
        eventually(lambda: int(self.server.bucket("jobs", "a")["waiting"]) == 7, "seven wait")
        eventually(lambda: self.log() == "bbbbb", "five run")
        self.start_job("b", "printf x > other").wait(WAIT_S)
        self.assertTrue(os.path.exists(os.path.join(self.folder.name, "other")))
        self.go()
        self.assertEqual([job.wait(WAIT_S) for job in jobs], [0] * 12)
        running = most = 0
        for event in self.log():
            running += 1 if event == "b" else -1
            most = max(most, running)
        self.assertEqual((running, most), (0, 5))
        eventually(lambda: self.server.remaining("jobs", "a") == 5, "all slots are free")

    def test_passes_on_the_exit_code_of_the_job(self):
        self.start_server()
        self.assertEqual(self.start_job("a", "exit 42").wait(WAIT_S), 42)

    def test_a_killed_runner_ends_its_job_and_its_slot_comes_back(self):
        self.start_server(hold_for=("30s", "2s"))
        job = self.start_job("a", "trap 'printf t >> log; exit' TERM; printf b >> log; "
                                  "while :; do sleep 0.05; done")
        eventually(lambda: self.log() == "b", "it runs")
        job.kill()
        eventually(lambda: self.log() == "bt", "the job is told to end")
        eventually(lambda: self.server.remaining("jobs", "a") == 5, "the slot is free")

    def test_a_job_whose_slot_is_lost_is_ended(self):
        server = self.start_server(hold_for=("30s", "2s"))
        job = self.start_job("a", "printf b >> log; exec sleep 600")
        eventually(lambda: self.log() == "b", "it runs")
        server.process.send_signal(signal.SIGSTOP)  # no renewal is answered
        try:
            self.assertEqual(job.wait(WAIT_S), 128 + signal.SIGTERM)
        finally:
            server.process.send_signal(signal.SIGCONT)

    def test_a_runner_waits_for_a_server_that_is_not_there_yet(self):
        self.start_server()
        link = self.fake(Link("127.0.0.1:1"))
        job = self.start_job("a", "true", link)
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(0.5)
        link.target = self.server.data
        self.assertEqual(job.wait(WAIT_S), 0)

    def test_a_runner_in_line_stands_in_line_again_when_the_server_has_restarted(self):
        server = self.start_server()
        link = self.fake(Link(server.data))
        for _ in range(5):
            self.start_job("a", "exec sleep 600")
        eventually(lambda: server.remaining("jobs", "a") == 0, "all slots are taken")
        job = self.start_job("a", "true", link)
        eventually(lambda: int(server.bucket("jobs", "a")["waiting"]) == 1, "it waits")
        server.close(kill=True)
        link.target = self.start_server().data
        self.assertEqual(job.wait(WAIT_S), 0)

    @needs_redis
    def test_over_redis_a_job_survives_the_death_of_its_server(self):
        redis = self.fake(Redis())
        flags = (redis.store, "--redis_budget=5s")
        server = self.start_server(*flags, hold_for=("30s", "6s"))
        link = self.fake(Link(server.data))
        job = self.start_job("a", self.JOB, link)
        eventually(lambda: self.log() == "b", "it runs")
        server.close(kill=True)
        link.target = self.start_server(*flags, hold_for=("30s", "6s")).data
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(8)  # longer than hold_for
        self.assertEqual(self.server.remaining("jobs", "a"), 4)
        self.go()
        self.assertEqual((job.wait(WAIT_S), self.log()), (0, "be"))


class EgressTest(RecipeTest):
    recipe = "egress"

    def start_egress(self, pieces, pause_s=0, **shorter):
        self.start_server(**shorter)
        self.origin = self.fake(Origin(pieces, pause_s))
        self.link = self.fake(Link(self.server.data))
        self.egress = self.start(os.path.join(BINARIES, "recipe_egress"), "0", "127.0.0.1",
                                 str(self.origin.port), self.link.address,
                                 stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        self.port = int(self.egress.stdout.readline().split()[-1])

    def receive(self, most=1 << 40):
        """Returns the bytes that arrive, and after which time the last did."""
        start, received = time.monotonic(), 0
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            while received < most and (data := connection.recv(65536)):
                received += len(data)
        return received, time.monotonic() - start

    def taken(self):
        return 20_000_000 - self.server.remaining("egress", "127.0.0.1")

    def open_estimates(self):
        return int(self.server.bucket("egress", "127.0.0.1")["openReceipts"])

    def test_charges_the_bytes_that_were_sent(self):
        self.start_egress([b"x" * 300_001], rate=("10000000/s", "10000000/365d"))
        self.assertEqual(self.receive()[0], 300_001)
        eventually(lambda: self.open_estimates() == 0, "the blocks are settled")
        self.assertAlmostEqual(self.taken(), 300_001, delta=100)

    def test_all_connections_of_an_address_share_its_rate(self):
        self.start_egress([b"x" * 10_000_000])
        results = []
        threads = [threading.Thread(target=lambda: results.append(self.receive()))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertEqual([received for received, _ in results], [10_000_000] * 4)
        # 40 MB: 20 at once, and 20 at 10 MB a second.
        self.assertGreaterEqual(max(seconds for _, seconds in results), 1.9)

    def test_pauses_of_the_origin_settle_what_was_sent(self):
        self.start_egress([b"x" * 1000] * 3, pause_s=0.4, rate=("10000000/s", "10000000/365d"))
        self.assertEqual(self.receive()[0], 3000)
        eventually(lambda: self.open_estimates() == 0, "the blocks are settled")
        self.assertAlmostEqual(self.taken(), 3000, delta=100)

    def test_a_client_that_leaves_is_charged_what_was_sent(self):
        self.start_egress([b"x" * 19_000_000], rate=("10000000/s", "10000000/365d"))
        self.receive(most=300_000)
        eventually(lambda: self.taken() > 0 and self.open_estimates() == 0, "all is settled")
        self.assertGreaterEqual(self.taken(), 300_000)
        self.assertLess(self.taken(), 18_000_000)  # what was in the sockets' buffers

    def test_a_killed_program_stays_charged_for_its_blocks(self):
        self.start_egress([b"x" * 100_000, b"y"], pause_s=WAIT_S,
                          rate=("10000000/s", "10000000/365d"))
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            connection.recv(1)
            self.egress.kill()
            self.egress.wait(WAIT_S)
        self.assertAlmostEqual(self.taken(), 256 << 10, delta=100)


class PaymentsTest(RecipeTest):
    recipe = "payments"
    PAID, REFUSED, NOT_KNOWN, NOT_NOW = range(4)

    def setUp(self):
        super().setUp()
        self.start_server()
        self.link = self.fake(Link(self.server.http))
        self.provider = self.fake(Provider())
        self.addCleanup(self.provider.answer.set)

    def start_pay(self, order, database="one.db"):
        return self.start(sys.executable, os.path.join(RECIPES, "payments.py"),
                          os.path.join(self.folder.name, database),
                          f"http://{self.provider.address}", self.link.address, order, "1999",
                          stderr=subprocess.DEVNULL)

    def pay(self, order, database="one.db"):
        return self.start_pay(order, database).wait(WAIT_S)

    def left(self, order):
        return self.server.remaining("payment", order)

    def test_pays_once_however_often_it_is_run(self):
        self.assertEqual([self.pay("o1") for _ in range(3)], [self.PAID] * 3)
        self.assertEqual(self.provider.calls("o1"), 1)
        self.assertEqual(self.pay("o2"), self.PAID)

    def test_lost_answers_take_one_permit(self):
        self.link.lose = 3
        self.assertEqual(self.pay("o"), self.PAID)
        self.assertEqual(self.link.lost, 3)
        self.assertEqual(self.provider.calls("o"), 1)
        self.assertEqual(self.left("o"), 0)
        self.assertGreaterEqual(self.server.remaining("provider", ""), 19)

    def test_another_machine_does_not_pay_again(self):
        self.assertEqual(self.pay("o", "one.db"), self.PAID)
        self.assertEqual(self.pay("o", "two.db"), self.PAID)  # as the provider says
        self.assertEqual(self.provider.calls("o"), 1)

    def test_a_machine_that_knows_nothing_does_not_pay_again_when_the_permit_is_back(self):
        self.server.close()
        self.link.target = self.start_server(rate=("1/h", "1/s")).http
        self.assertEqual(self.pay("o", "one.db"), self.PAID)
        eventually(lambda: self.left("o") == 1, "the permit is back")
        self.assertEqual(self.pay("o", "two.db"), self.PAID)
        self.assertEqual(self.provider.calls("o"), 1)

    def test_many_runs_at_once_on_two_machines_pay_once(self):
        runs = [self.start_pay("o", database) for database in ("one.db", "two.db") * 4]
        codes = [run.wait(WAIT_S) for run in runs]
        self.assertIn(self.PAID, codes)
        self.assertLessEqual(set(codes), {self.PAID, self.NOT_KNOWN})
        self.assertEqual(self.provider.calls("o"), 1)

    def test_a_run_that_died_before_the_answer_uses_its_permit_later(self):
        self.link.lose = 1_000_000
        run = self.start_pay("o")
        eventually(lambda: self.link.lost > 0, "the permit is taken, its answer lost")
        run.kill()
        run.wait(WAIT_S)
        self.link.lose = 0
        self.assertEqual(self.left("o"), 0)
        self.assertEqual(self.pay("o"), self.PAID)
        self.assertEqual(self.provider.calls("o"), 1)

    def test_a_run_that_died_while_it_called_is_not_repeated(self):
        self.provider.answer.clear()
        run = self.start_pay("o")
        eventually(lambda: self.provider.calls("o") == 1, "the provider is called")
        run.kill()
        run.wait(WAIT_S)
        self.provider.answer.set()
        self.assertEqual(self.pay("o"), self.PAID)  # as the provider says
        self.assertEqual(self.provider.calls("o"), 1)

    def test_nothing_is_known_if_the_provider_does_not_say(self):
        self.provider.answer.clear()
        run = self.start_pay("o")
        eventually(lambda: self.provider.calls("o") == 1, "the provider is called")
        run.kill()
        run.wait(WAIT_S)
        self.provider.payments.clear()  # the call was lost on its way
        self.assertEqual([self.pay("o"), self.pay("o", "two.db")], [self.NOT_KNOWN] * 2)
        self.assertEqual(self.provider.calls("o"), 0)

    @needs_redis
    def test_over_redis_another_node_gives_a_grant_again_whose_answer_was_lost(self):
        redis = self.fake(Redis())
        flags = (redis.store, "--redis_budget=5s")
        self.server.close()
        first = self.start_server(*flags)
        self.link.target = first.http
        self.link.lose = 1_000_000
        run = self.start_pay("o")
        eventually(lambda: self.left("o") == 0, "the permit is taken")
        first.close(kill=True)
        self.link.target = self.start_server(*flags).http
        self.link.lose = 0
        self.assertEqual(run.wait(WAIT_S), self.PAID)
        self.assertEqual(self.pay("o", "two.db"), self.PAID)
        self.assertEqual(self.left("o"), 0)
        self.assertEqual(self.provider.calls("o"), 1)

    def test_reports_that_the_provider_refused(self):
        self.assertEqual(self.pay("refused"), self.REFUSED)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
