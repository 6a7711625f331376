"""Passes chat completions on to a model, streamed, within each tenant's limits.

usage: llm_gateway.py PORT MODEL_HOST:PORT SLUICE_HOST:PORT
"""
import http.client
import http.server
import json
import math
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

SETTLE_WITHIN_S = 60  # how long an estimate waits for the next report
REPORT_EVERY_S = 5    # a third of hold_for
ANSWER_TOKENS = 500   # the estimate of an answer if the request has no max_tokens


def sluice(method, message, attempts=1):
    """A call of RateLimiter. OSError: no answer; its subclass HTTPError: a refusal."""
    request = urllib.request.Request(f"http://{SLUICE}/v1/{method}", json.dumps(message).encode(),
                                     {"Content-Type": "application/json"})
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return json.load(answer)
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or attempt + 1 == attempts:
                raise
            time.sleep(0.2 * 2 ** attempt)


def now():
    """Seconds, on a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Call:
    """A request that was granted, until it is settled or refunded."""
    open = {}  # of all calls: receipt -> Call

    def __init__(self, tenant, answer, asked_at):
        self.tenant, self.receipt, self.used, self.model = tenant, answer["receipt"], 0, None
        self.hold(asked_at, answer["charges"][2])
        Call.open[self.receipt] = self

    def hold(self, asked_at, held):
        self.held_until = asked_at + float(held["heldFor"][:-1])

    def settlement(self, more):
        actual = [{"limit": "tokens", "key": self.tenant, "permits": self.used}]
        return {"receipt": self.receipt, "actual": actual, "more": more}

    def end(self, ran=True):
        """Settles a call that ran with the tokens that it used; refunds one that did not run."""
        del Call.open[self.receipt]
        try:
            if ran:
                sluice("settle", self.settlement(more=False), attempts=5)
            else:
                sluice("refund", {"receipt": self.receipt}, attempts=5)
        except urllib.error.HTTPError as error:
            if ran and error.code == 400:  # the server has started again: its buckets are full
                charges = [{"limit": "tokens", "key": self.tenant, "permits": max(self.used, 1)},
                           {"limit": "requests", "key": self.tenant}]
                sluice("acquire", {"charges": charges, "force": True})
            else:
                print(f"not settled: {error.read().decode()}", file=sys.stderr)
        except OSError as error:  # the estimate stays charged, the slot ends after hold_for
            print(f"not settled: {error}", file=sys.stderr)

    def stop(self):
        """The slot is lost, and another call may have it. Ends the stream from the model."""
        try:
            if self.model is not None:
                self.model.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has just ended


def report_forever():
    """Reports what open calls have used so far, and renews their slots: two calls for 4096."""
    while True:
        time.sleep(REPORT_EVERY_S)
        asked_at, calls = now(), list(Call.open.values())[:4096]
        try:
            if calls:
                sluice("settleBatch", {"settlements": [call.settlement(True) for call in calls]})
                renewed = sluice("renew", {"receipts": [call.receipt for call in calls]})
                for call, result in zip(calls, renewed["results"]):
                    if result["outcome"] == "RENEW_OUTCOME_RENEWED":
                        call.hold(asked_at, result)
                    else:
                        call.stop()
        except OSError as error:
            print(f"not reported: {error}", file=sys.stderr)
        for call in calls:
            if now() + REPORT_EVERY_S > call.held_until:
                call.stop()


class Gateway(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tenant = self.headers["X-Tenant"]  # from a key that was checked
        if not tenant:
            return self.refuse(401, "no tenant")
        prompt = len(body) // 4
        estimate = prompt + json.loads(body).get("max_tokens", ANSWER_TOKENS)
        asked_at = now()
        try:
            answer = sluice("acquire", {
                "charges": [{"limit": "tokens", "key": tenant, "permits": estimate},
                            {"limit": "requests", "key": tenant},
                            {"limit": "in_flight", "key": tenant}],
                "settleWithin": f"{SETTLE_WITHIN_S}s"})
        except urllib.error.HTTPError as error:  # for example max_tokens beyond the burst
            return self.refuse(503 if error.code >= 500 else 400, error.read().decode())
        except OSError as error:
            return self.refuse(503, f"no answer from the rate limiter: {error}")
        if not answer["granted"]:
            wait_s = max(1, math.ceil(float(answer["retryAfter"][:-1])))
            return self.refuse(429, "over the tenant's limits", {"Retry-After": wait_s})
        call = Call(tenant, answer, asked_at)
        ran = False
        try:
            model = http.client.HTTPConnection(MODEL, timeout=60)
            model.connect()
            call.model = model.sock
            ran = True  # from here on the model may have worked
            model.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = model.getresponse()
            ran = response.status == 200
            self.send_response(response.status)
            self.end_headers()
            self.pass_on(response, call, prompt if ran else 0)
        except OSError as error:
            print(f"{tenant}: {error}", file=sys.stderr)
        finally:
            call.end(ran)

    def pass_on(self, response, call, prompt):
        total = None
        try:
            with response:
                for line in response:
                    self.wfile.write(line)
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        call.used += bool(event.get("choices"))  # at least a token
                        total = (event.get("usage") or {}).get("total_tokens")
        finally:  # what was reported may not fall
            call.used = max(call.used, call.used + prompt if total is None else total)

    def refuse(self, status, text, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps({"error": text}).encode())


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


PORT, MODEL, SLUICE = int(sys.argv[1]), *sys.argv[2:4]
threading.Thread(target=report_forever, daemon=True).start()
server = Server(("127.0.0.1", PORT), Gateway)
print(f"listening on 127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
