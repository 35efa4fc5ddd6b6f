"""The controller manager: one thread that lets every controller look at the store after each change."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence

from k8s_store import Store

# Looks at everything and puts it right; returns the seconds after which it wants to look again, if any.
Sync = Callable[[], float | None]
_IDLE_S = 30.0


class Manager:
    """Runs controllers until `stop`; pauses while the API server is down, as real ones must.

    Attributes:
        faults: tracebacks of controllers that broke; `stop` raises them.
    """

    def __init__(self, store: Store, controllers: Sequence[Sync], is_up: Callable[[], bool]) -> None:
        self._store = store
        self._controllers = controllers
        self._is_up = is_up
        self._ending = False
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._run, name="k8s-controllers", daemon=True)

    def start(self) -> None:
        """In the background."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; raises what broke in it."""
        self._ending = True
        while self._thread.is_alive():
            self._store.poke()
            self._thread.join(0.1)
        if self.faults:
            raise RuntimeError("\n".join(self.faults))

    def _run(self) -> None:
        while not self._ending:
            seen = self._store.ticks
            due = [self._look(sync) for sync in self._controllers] if self._is_up() else []
            self._store.wait(seen, min([_IDLE_S, *(seconds for seconds in due if seconds is not None)]))

    def _look(self, sync: Sync) -> float | None:
        try:
            return sync()
        except Exception:
            self.faults.append(traceback.format_exc())
            return 1.0
