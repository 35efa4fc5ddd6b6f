"""Controller manager: one thread that runs every controller after each change of the store."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence

from cluster.api.store import Store

# Reconciles all objects of a kind; returns the seconds after which it must run again, if any.
Sync = Callable[[], float | None]
_IDLE_S = 30.0


class Manager:
    """Run controllers until `stop`; pauses while the API server is down.

    Attributes:
        errors: tracebacks of controllers; `stop` raises them.
    """

    def __init__(self, store: Store, controllers: Sequence[Sync], is_up: Callable[[], bool]) -> None:
        self._store = store
        self._controllers = controllers
        self._is_up = is_up
        self._stopping = False
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, name="k8s-controllers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; raises the errors of controllers."""
        self._stopping = True
        while self._thread.is_alive():
            self._store.poke()
            self._thread.join(0.1)
        if self.errors:
            raise RuntimeError("\n".join(self.errors))

    def _run(self) -> None:
        while not self._stopping:
            seen = self._store.ticks
            due = [self._run_one(sync) for sync in self._controllers] if self._is_up() else []
            self._store.wait(seen, min([_IDLE_S, *(seconds for seconds in due if seconds is not None)]))

    def _run_one(self, sync: Sync) -> float | None:
        try:
            return sync()
        except Exception:
            self.errors.append(traceback.format_exc())
            return 1.0
