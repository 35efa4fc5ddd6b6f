"""Whether a 403 is to be believed: a restarted API server sends some before it has its roles."""

from __future__ import annotations

import time

# Real ones last for a second or two; a role that lacks the right refuses for ever.
BELIEVED_AFTER_S = 60.0


class LastingRefusal:
    """Since when each request has been refused."""

    def __init__(self) -> None:
        self._since: float | None = None

    def believed(self) -> bool:
        """Record a 403; whether they have lasted."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= BELIEVED_AFTER_S

    def reset(self) -> None:
        """Record a request that was not refused."""
        self._since = None
