"""A cluster's name server, for pods that resolve with glibc: A records of a zone file, nothing else.

python -I podman_dns.py ZONE     UDP port 53 of the network it was started in, until it is killed

ZONE has a line `address name` for each name; it is read anew for every question. A name that is not there
does not exist. https://github.com/kubernetes/dns/blob/master/docs/specification.md
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

_A, _NXDOMAIN, _TTL_S = 1, 3, 5
# A response, authoritative, recursion available; the asker's "recursion desired" is kept.
_FLAGS, _DESIRED = 0x8480, 0x0100
_HEADER = struct.Struct("!6H")


def main(zone: Path) -> None:
    """Answer until killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind(("0.0.0.0", 53))
        print("ready", flush=True)
        while True:
            question, asker = door.recvfrom(512)
            lines = (line.split() for line in zone.read_text(encoding="ascii").splitlines())
            door.sendto(answer(question, {name: address for address, name in lines}), asker)


def answer(question: bytes, zone: Mapping[str, str]) -> bytes:
    """The reply to one question."""
    identity, flags, *_ = _HEADER.unpack_from(question)
    labels, at = [], _HEADER.size
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    asked = question[_HEADER.size : at + 5]
    (kind,) = struct.unpack_from("!H", question, at + 1)
    address = zone.get(".".join(labels))
    records = []
    if address is not None and kind == _A:
        # 0xC00C: the name stands in the question.
        records = [struct.pack("!3HIH", 0xC00C, _A, 1, _TTL_S, 4) + socket.inet_aton(address)]
    flags = _FLAGS | (flags & _DESIRED) | (0 if address is not None else _NXDOMAIN)
    return _HEADER.pack(identity, flags, 1, len(records), 0, 0) + asked + b"".join(records)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
