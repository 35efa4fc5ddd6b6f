"""A TCP port for a rendezvous that opens later."""

from __future__ import annotations

import random
import socket

# Below the ports that Linux gives to whoever asks for any (net.ipv4.ip_local_port_range, from 32768 on):
# one of those may be another test's before the rendezvous opens.
_RANGE = range(21_000, 32_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(_RANGE)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
