"""TLS 1.3 records of a client, made by hand: Python's ssl cannot send KeyUpdates.

OpenSSL does the handshake. Its key log tells the secret from which the keys of the records follow
(RFC 8446, 7.2 and 7.3).
"""
import hmac
import re
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

# By the name of the cipher suite: the cipher, the bytes of its key, the hash.
SUITES = {"TLS_AES_256_GCM_SHA384": (AESGCM, 32, "sha384"),
          "TLS_AES_128_GCM_SHA256": (AESGCM, 16, "sha256"),
          "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, 32, "sha256")}
HANDSHAKE, APPLICATION_DATA = 22, 23
TAG_BYTES = 16
KEY_UPDATE = b"\x18\0\0\1\1"  # update_requested


class Records:
    """`keys`: the key log of a connection that has sent no data yet."""

    def __init__(self, suite, keys):
        self._cipher, self._key_bytes, self._hash = SUITES[suite]
        secret = re.search(r"^CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)$", keys, re.MULTILINE)[1]
        self._use(bytes.fromhex(secret))

    def data(self, content):
        return self._record(APPLICATION_DATA, content)

    def key_update(self):
        """The records that follow have the next keys."""
        made = self._record(HANDSHAKE, KEY_UPDATE)
        self._use(self._expand("traffic upd", len(self._secret)))
        return made

    def _record(self, kind, content):
        header = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(content) + 1 + TAG_BYTES)
        nonce = (self._iv ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        return header + self._keyed.encrypt(nonce, content + bytes([kind]), header)

    def _use(self, secret):
        self._secret, self._sequence = secret, 0
        self._keyed = self._cipher(self._expand("key", self._key_bytes))
        self._iv = int.from_bytes(self._expand("iv", 12), "big")

    def _expand(self, label, size):
        """HKDF-Expand-Label, for at most the bytes of one hash."""
        label = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(label)) + label + b"\0\1"
        return hmac.digest(self._secret, info, self._hash)[:size]
