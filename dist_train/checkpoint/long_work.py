"""Let rank 0, or every rank, read or write for as long as it takes, while the other ranks wait for it.

A save of a large model may take longer than the time-out of collectives, and than the watchdog's. So rank 0
tells the others every half second that it still works, and each such beat counts as progress, on both sides.
Rank 0's own beat counts only while its main thread uses processor time: one that hangs in the storage is
still ended by the watchdog, and no beat is sent any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dist_train.checkpoint.agreement import error_from_json, error_to_json, on_every_rank, on_rank_zero
from dist_train.distributed.run import current

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)
T = TypeVar("T")

BEAT_S = 0.5
# Rank 0 has used no processor time for so long: it hangs, and the others' collective may time out.
STALLED_S = 600.0


def keep_alive() -> None:
    """Count as progress for the current run's watchdog, if it watches."""
    run = current()
    if run is not None:
        run.keep_alive()


def no_progress() -> None:
    """In place of `keep_alive`, for work beside the training: that must not hide a training that hangs."""


def on_rank_zero_for_long(
    control: Control, work: Callable[[], JsonValue], alive: Callable[[], None] = keep_alive
) -> JsonValue:
    """`on_rank_zero`, for work that may outlast every time-out (collective).

    Args:
        control: all ranks.
        work: done on rank 0.
        alive: called while it goes on.
    """
    if control.group is None:
        return on_rank_zero(control, work)
    if not control.is_main:
        return _wait(control, alive)
    value: JsonValue = None
    failure: Exception | None = None
    with _Beats(control, alive):
        try:
            value = work()
        except Exception as error:
            failure = error
    control.broadcast([value, error_to_json(failure)])
    if failure is not None:
        raise failure
    return value


def on_every_rank_for_long(
    control: Control, work: Callable[[], T], alive: Callable[[], None] = keep_alive
) -> T:
    """`on_every_rank`, for work that may outlast every time-out (collective).

    Args:
        control: all ranks.
        work: done on each.
        alive: called while it goes on.
    """
    if control.group is None:
        return on_every_rank(control, work)

    def among_meetings() -> T:
        with _Meetings(control, alive):
            return work()

    return on_every_rank(control, among_meetings)


def _wait(control: Control, alive: Callable[[], None]) -> JsonValue:
    while True:
        answer = control.broadcast(None)
        if answer is not None:
            break
        alive()
    assert isinstance(answer, list)
    if answer[1] is not None:
        raise error_from_json(0, answer[1])
    return answer[0]


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:  # no more threads; or the interpreter is on its way out
        logger.info("the other ranks wait for this one without a sign of it: %s", error)


class _Beats:
    """Sends None to the other ranks every BEAT_S seconds while the calling thread works."""

    def __init__(self, control: Control, alive: Callable[[], None]) -> None:
        self._control = control
        self._alive = alive
        self._done = threading.Event()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._thread = threading.Thread(target=self._beat, name="dist-train-save-beats", daemon=True)

    def __enter__(self) -> None:
        _start(self._thread)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _beat(self) -> None:
        used, worked_at = 0.0, time.monotonic()
        while not self._done.wait(BEAT_S):
            now = time.clock_gettime(self._clock)
            if now > used:
                used, worked_at = now, time.monotonic()
                self._alive()
            if time.monotonic() - worked_at > STALLED_S:
                return
            try:
                self._control.broadcast(None)
            except RuntimeError:
                return  # a rank is gone: the answer's broadcast raises it in the main thread


class _Meetings:
    """Lets the ranks meet every BEAT_S seconds while they work, until all of them are done.

    A rank that hangs in the storage comes no more once it has used no processor time for STALLED_S: the
    others' meeting times out then.
    """

    def __init__(self, control: Control, alive: Callable[[], None]) -> None:
        self._control = control
        self._alive = alive
        self._done = threading.Event()
        self._error: RuntimeError | None = None
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._thread = threading.Thread(target=self._meet, name="dist-train-save-meetings", daemon=True)

    def __enter__(self) -> None:
        _start(self._thread)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return  # this process ends, and waits for nobody
        self._done.set()
        if self._thread.ident is None:
            self._meet()
        else:
            self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _meet(self) -> None:
        used, worked_at = 0.0, time.monotonic()
        while True:
            is_done = self._done.wait(BEAT_S)
            now = time.clock_gettime(self._clock)
            if is_done or now > used:
                used, worked_at = now, time.monotonic()
                self._alive()
            if time.monotonic() - worked_at > STALLED_S:
                return
            try:
                if all(self._control.all_gather(is_done)):
                    return
            except RuntimeError as error:  # a rank is gone
                self._error = error
                return
