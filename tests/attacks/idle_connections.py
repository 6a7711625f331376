"""A program with idle connections, which the kernel closes all at once when it is killed.

  idle_connections.py OPTIONS (JSON: address, source, count, unread, ca)

Each connection has greeted. Prints how many there are, and waits. If the server's last bytes were
read, a connection ends with a FIN; with `unread`, it ends with a reset.
"""
import json
import ssl
import sys
import time

from http2 import Connection

options = json.loads(sys.argv[1])
tls = None
if options["ca"]:
    tls = ssl.create_default_context(cafile=options["ca"])
    tls.set_alpn_protocols(["h2"])
held = []
for _ in range(options["count"]):
    try:
        held.append(Connection(options["address"], tls=tls, source=options["source"]))
    except OSError:
        break
time.sleep(0.5)
if not options["unread"]:
    for one in held:
        one.read()
print(len(held), flush=True)
time.sleep(600)
