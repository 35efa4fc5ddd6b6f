"""Name server of a cluster, for pods that resolve with glibc: A records of a zone file, nothing else.

python -I name_server.py ZONE     serves UDP port 53 of its network namespace until it is killed

ZONE has a line `address name` for each name and is read for every query. Other names do not exist
(NXDOMAIN). https://github.com/kubernetes/dns/blob/master/docs/specification.md
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

_A, _NXDOMAIN, _TTL_S = 1, 3, 5
# A response, authoritative, recursion available; the query's "recursion desired" is kept.
_FLAGS, _DESIRED = 0x8480, 0x0100
_HEADER = struct.Struct("!6H")


def main(zone: Path) -> None:
    """Answer queries until killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 53))
        print("ready", flush=True)
        while True:
            query, client = server.recvfrom(512)
            lines = (line.split() for line in zone.read_text(encoding="ascii").splitlines())
            server.sendto(answer(query, {name: address for address, name in lines}), client)


def answer(query: bytes, zone: Mapping[str, str]) -> bytes:
    """Response to one query."""
    identity, flags, *_ = _HEADER.unpack_from(query)
    labels, at = [], _HEADER.size
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    question = query[_HEADER.size : at + 5]
    (kind,) = struct.unpack_from("!H", query, at + 1)
    address = zone.get(".".join(labels))
    records = []
    if address is not None and kind == _A:
        # 0xC00C: a pointer to the name in the question.
        records = [struct.pack("!3HIH", 0xC00C, _A, 1, _TTL_S, 4) + socket.inet_aton(address)]
    flags = _FLAGS | (flags & _DESIRED) | (0 if address is not None else _NXDOMAIN)
    return _HEADER.pack(identity, flags, 1, len(records), 0, 0) + question + b"".join(records)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
