"""Pays an order by calling a provider that must not be called twice.

usage: payments.py DATABASE PROVIDER_URL SLUICE_HOST:PORT ORDER CENTS
Exit codes: 0 paid, 1 refused, 2 not known: ask the provider, 3 not paid now: run it again.
"""
import base64
import json
import os
import sqlite3
import sys
import time
import urllib.error
import urllib.request

REMEMBERED_S = 50  # the server remembers a grant for 60 s
PAID, REFUSED, NOT_KNOWN, NOT_NOW = range(4)


def post(url, message, headers=None):
    request = urllib.request.Request(url, json.dumps(message).encode(),
                                     {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def permit(request_id, asked_at):
    """Asks with one id until there is an answer: may this order be paid? None: no answer."""
    message = {"charges": [{"limit": "payment", "key": ORDER}],
               "requestId": base64.b64encode(request_id).decode()}
    while time.time() < asked_at + REMEMBERED_S:
        pause_s = 0.2
        try:
            answer = post(f"http://{SLUICE}/v1/acquire", message)
            if answer["granted"]:
                return True
            if answer["charges"][0]["reason"] != "REASON_UNSPECIFIED":
                return False  # another run has the permit of this order
            pause_s = float(answer["retryAfter"][:-1])  # the provider's rate is used up
        except urllib.error.HTTPError as error:
            if error.code < 500:  # a mistake in the limits, the token or the request
                print(f"Sluice: {error.read().decode()}", file=sys.stderr)
                return None
        except OSError:
            pass  # it may have been granted: the same id then gets the same answer
        time.sleep(pause_s)
    return None


def provider_has_it():
    """None: there is no answer."""
    try:
        with urllib.request.urlopen(f"{PROVIDER}/payments/{ORDER}", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return False if error.code == 404 else None
    except OSError:
        return None


def move_to(state, before):
    """Notes the next state on disk. False: another run on this machine was first."""
    with db:
        return db.execute("UPDATE payments SET state = ? WHERE id = ? AND state = ?",
                          (state, ORDER, before)).rowcount == 1


def pay():
    with db:
        db.execute("INSERT OR IGNORE INTO payments VALUES (?, 'new', ?, ?)",
                   (ORDER, os.urandom(16), time.time()))
        # After a minute the server has forgotten the id.
        db.execute("UPDATE payments SET request_id = ?, asked_at = ? "
                   "WHERE id = ? AND state = 'new' AND asked_at < ?",
                   (os.urandom(16), time.time(), ORDER, time.time() - REMEMBERED_S))
    state, request_id, asked_at = db.execute(
        "SELECT state, request_id, asked_at FROM payments WHERE id = ?", (ORDER,)).fetchone()
    if state == "new":
        permitted = permit(request_id, asked_at)
        if permitted is None:
            return NOT_NOW
        if permitted and move_to("calling", before="new"):
            state = "calling"
            if provider_has_it() is False:  # nor has a run that had the permit an hour ago paid
                return call_provider()
    # Another run calls, has called, or died before or after it called.
    if state != "paid" and not provider_has_it():
        return NOT_KNOWN
    move_to("paid", before=state)
    return PAID


def call_provider():
    try:
        post(f"{PROVIDER}/payments", {"order": ORDER, "cents": CENTS}, {"Idempotency-Key": ORDER})
    except urllib.error.HTTPError as error:
        return REFUSED if error.code < 500 else NOT_KNOWN
    except OSError:
        return NOT_KNOWN  # it may have been executed
    move_to("paid", before="calling")
    return PAID


DATABASE, PROVIDER, SLUICE, ORDER, CENTS = *sys.argv[1:5], int(sys.argv[5])
db = sqlite3.connect(DATABASE)
db.execute("CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, state, request_id, asked_at)")
sys.exit(pay())
