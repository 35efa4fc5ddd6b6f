"""Connections that have not proved to be an agent's: how many there may be, and for how long."""

from __future__ import annotations

from dist_train.agent.coordination.peer_connection import PeerConnection

PER_ADDRESS = 256  # several agents of one machine may connect at the same time


class UnauthenticatedPeers:
    """Strangers in the order in which they came; the oldest have to go first.

    Honest agents answer within milliseconds and try again, so that it is idle strangers who are old.

    Args:
        total: how many there may be.
        seconds: for the whole handshake, however slowly its bytes come.
        per_address: how many of one address there may be.
    """

    def __init__(self, total: int, seconds: float, per_address: int = PER_ADDRESS) -> None:
        self._total = total
        self._per_address = per_address
        self._seconds = seconds
        self._all: dict[PeerConnection, None] = {}
        self._by_address: dict[str, dict[PeerConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: PeerConnection) -> PeerConnection | None:
        """Count a new connection; return the one that has to go in its place, if there are too many."""
        of_address = self._by_address.setdefault(peer.address, {})
        of_address[peer] = self._all[peer] = None
        if len(of_address) > self._per_address:
            return next(iter(of_address))
        return next(iter(self._all)) if len(self._all) > self._total else None

    def discard(self, peer: PeerConnection) -> None:
        """Forget one that has been accepted or closed."""
        if peer not in self._all:
            return
        del self._all[peer]
        of_address = self._by_address[peer.address]
        del of_address[peer]
        if not of_address:
            del self._by_address[peer.address]

    def oldest(self) -> PeerConnection | None:
        """Return the one that came first."""
        return next(iter(self._all), None)

    def expired(self, now: float) -> list[PeerConnection]:
        """Return those whose time for the handshake is up."""
        found = []
        for peer in self._all:
            if now - peer.heard_at <= self._seconds:
                break
            found.append(peer)
        return found
