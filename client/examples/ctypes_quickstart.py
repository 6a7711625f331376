"""Takes a permit through libsluice.so: ctypes_quickstart.py HOST:PORT LIMIT KEY"""
import ctypes as c
import os
import sys

lib = c.CDLL(os.environ.get("SLUICE_LIBRARY", "libsluice.so.1"))


def struct(name, **fields):  # the structures of sluice/sluice.h
    return type(name, (c.Structure,), {"_fields_": list(fields.items())})


Options = struct("Options", size=c.c_size_t, servers=c.c_char_p, rest=c.c_byte * 64)
Charge = struct("Charge", limit=c.c_char_p, key=c.c_char_p, key_size=c.c_size_t, permits=c.c_uint64)
Acquisition = struct("Acquisition", charges=c.POINTER(Charge), count=c.c_size_t, wait_ns=c.c_int64,
                     deadline_ns=c.c_int64, hold=c.c_int32, want_receipt=c.c_int32)
Decision = struct("Decision", code=c.c_int32, granted=c.c_int32, source=c.c_int32,
                  executed=c.c_int32, retry_after_ns=c.c_int64, wait_ns=c.c_int64,
                  charges=c.c_void_p, count=c.c_size_t, receipt=c.c_void_p, size=c.c_size_t,
                  server=c.c_uint32, reserved=c.c_uint32, message=c.c_char_p, owner=c.c_void_p)
lib.sluice_create.restype = c.c_void_p

server, limit, key = (text.encode() for text in sys.argv[1:4])
error = c.create_string_buffer(256)
client = c.c_void_p(lib.sluice_create(c.byref(Options(16, server)), error, c.c_size_t(256)))
if not client:
    sys.exit(f"cannot create the client: {error.value.decode()}")
decision = Decision()
lib.sluice_acquire(client, c.byref(Acquisition(c.pointer(Charge(limit, key, len(key), 1)), 1)),
                   c.byref(decision))
text = decision.message.decode()
answer = "granted" if decision.granted else f"denied; try again in {decision.retry_after_ns / 1e9:.3f} s"
print(f"error {decision.code}: {text}" if decision.code else answer + (f" ({text})" if text else ""))
lib.sluice_decision_clear(c.byref(decision))
lib.sluice_destroy(client)
