"""The MAC of each message after the handshake: by a key of this connection alone, in order.

    <64 hexadecimal digits> <JSON>\\n

A MAC covers the message and its number in its direction. Whoever sits between two agents, or takes over
their connection, can neither change nor insert, repeat, drop or reorder messages; it can read them.
"""

from __future__ import annotations

import hmac

_DIGITS = 64


class WrongMac(ValueError):
    """A message is not what the agent at the other end sent next."""


class MessageSeal:
    """One direction of one connection: makes the MACs at its sender, checks them at its receiver.

    Args:
        key: of this direction; see Identity.connection_keys.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def mark(self, payload: bytes) -> bytes:
        """Return what precedes this payload on the wire; the next call is for the next message."""
        return self._next_mac(payload) + b" "

    def check(self, line: bytes) -> bytes:
        """Return a line's payload; raises WrongMac for all but the sender's next message."""
        payload = line[_DIGITS + 1 :]
        expected = self._next_mac(payload)
        if line[_DIGITS : _DIGITS + 1] != b" " or not hmac.compare_digest(line[:_DIGITS], expected):
            raise WrongMac(f"message {self._number} of this connection has a wrong MAC: {line[:160]!r}")
        return payload

    def _next_mac(self, payload: bytes) -> bytes:
        self._number += 1
        text = self._number.to_bytes(8, "big") + payload
        return hmac.digest(self._key, text, "sha256").hex().encode()
