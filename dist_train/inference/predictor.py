"""dt.Predictor: a model on several devices at once, results in the order of their batches."""

from __future__ import annotations

import logging
import multiprocessing.process
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, ClassVar

from torch import nn

from dist_train.checkpoint.modules import unwrap
from dist_train.errors import ConfigError, UsageError
from dist_train.inference.child import Forward
from dist_train.inference.failures import BatchFailed, WorkerBroken
from dist_train.inference.ledger import AT_A_WORKER, DEATHS, Ledger
from dist_train.inference.parcel import pack
from dist_train.inference.placing import Device, place
from dist_train.inference.worker import Worker

logger = logging.getLogger(__name__)


class Predictor:
    """Computes batches with one process per device. Use it in a `with` block, or close it.

        with dt.Predictor(model, devices=["cuda:0", "cuda:3"]) as predictor:
            for outputs in predictor.predict(batches):
                ...

    Results come in the order of their batches, with tensors on the CPU. Where a worker dies, its batches
    are computed by another and a new worker takes its place: nothing is lost, nothing comes twice. A batch
    that has ended three workers, or on which the model raises, is raised as BatchFailed with its index.

    The workers are spawned: a script makes a Predictor below `if __name__ == "__main__":`, and the model's
    class lies where it can be imported.

    Args:
        model: wrapped or not; its weights are copied as they are now, and put into eval mode there.
        devices: one worker each. Default: every visible GPU, else one CPU process.
        processes: so many CPU processes instead.
        forward: what to compute, as f(model, batch); default model(batch).
        threads: CPU threads of each worker (they are part of the bits).

    Raises:
        ConfigError: devices that are not there; WorkerBroken: a worker could not begin.
    """

    start_method: ClassVar[str] = "spawn"

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[Device] | None = None,
        *,
        processes: int | None = None,
        forward: Forward | None = None,
        threads: int = 1,
    ) -> None:
        _refuse_while_importing()
        self.devices = tuple(place(devices, processes))
        self._threads = threads
        self._opening = _pack_model(unwrap(model), forward)
        self._workers: list[Worker] = []
        # Also where nobody closes it: when it is collected, or the interpreter leaves.
        self._end = weakref.finalize(self, _end_all, self._workers)
        self._ledger = Ledger(len(self.devices))
        # Deaths in a row of workers that were not ready yet.
        self._stillborn = 0
        try:
            for device in self.devices:
                self._workers.append(self._start(device))
            while not all(worker.ready for worker in self._workers):
                self._listen()
        except BaseException:
            self.close()
            raise

    def predict(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The model's results, in the order of the batches, which are taken as they are needed.

        At most 4 batches per worker are on their way. One iteration at a time: a new one ends the last.

        Raises:
            BatchFailed: naming the batch; the predictor can be used again.
        """
        if not self._end.alive:
            raise UsageError("this Predictor is closed", mend="use it inside its `with` block")
        with self._whole_messages():
            self._drain()
        self._ledger = Ledger(len(self._workers))
        return self._run(iter(batches), self._ledger)

    def close(self) -> None:
        """End the workers, also at work; may be called again."""
        self._end()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, batches: Iterator[Any], ledger: Ledger) -> Iterator[Any]:
        more = True
        self._refuse_left(ledger)
        while True:
            with self._whole_messages():
                more = self._hand_out(batches, ledger, more)
            yielded = False
            for result in ledger.results():
                yielded = True
                yield result
                self._refuse_left(ledger)
            if not more and ledger.settled:
                return
            if not yielded:
                with self._whole_messages():
                    self._listen()

    @contextmanager
    def _whole_messages(self) -> Iterator[None]:
        """A signal may have cut a message to or from a worker, and what follows would be misread: close."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise

    def _refuse_left(self, ledger: Ledger) -> None:
        if ledger is not self._ledger or not self._end.alive:
            raise UsageError(
                "this iteration has ended: the Predictor was closed, or predict() was called again",
                mend="one iteration at a time for each Predictor",
            )

    def _hand_out(self, batches: Iterator[Any], ledger: Ledger, more: bool) -> bool:
        """Give workers what they have room for, one each before any has two; False after the last batch."""
        for count in range(AT_A_WORKER):
            for number, worker in enumerate(self._workers):
                if not worker.ready or ledger.held(number) > count:
                    continue
                entry = ledger.give(number)
                if entry is None and more and not ledger.full:
                    more = _take_in(batches, ledger)
                    entry = ledger.give(number)
                if entry is not None:
                    worker.send(entry.parcel)  # a dead one is met by _listen
        return more

    def _listen(self) -> None:
        """Wait until a worker says something or dies, and take it in."""
        stirred = wait([sign for worker in self._workers for sign in worker.signs])
        for number, worker in enumerate(list(self._workers)):
            if any(sign in stirred for sign in worker.signs):
                self._take(number, worker, worker.receive())

    def _take(self, number: int, worker: Worker, message: Any | None) -> None:
        if message is None:
            self._replace(number, worker)
        elif message[0] == "ready":
            worker.ready = True
            self._stillborn = 0
        elif message[0] == "broken":
            raise _broken(worker, message[1])
        elif message[0] == "done":
            self._ledger.finish(number, message[1], message[2])
        else:
            index = self._ledger.drop(number)
            text = f"batch {index} on {worker.device}: {message[2]}"
            raise BatchFailed(text, index=index, traceback=message[3])

    def _replace(self, number: int, worker: Worker) -> None:
        fate = worker.fate()
        if not worker.ready:
            self._stillborn += 1
        # One that was killed may have been in the way of something; one that has left would leave again.
        if not worker.ready and (self._stillborn >= DEATHS or not worker.killed):
            raise WorkerBroken(
                f"{fate} before it was ready",
                mend='a script makes its Predictor below `if __name__ == "__main__":`; '
                "signal 9 is often the kernel's out-of-memory killer",
            )
        worker.end()
        self._workers[number] = self._start(worker.device)
        lost = self._ledger.held(number)
        self._ledger.lose(number, fate)
        logger.warning("%s; a new one begins, %s batches are computed again", fate, lost)

    def _start(self, device: str) -> Worker:
        return Worker(device, self._threads, self._opening, self.start_method)

    def _drain(self) -> None:
        """Let the workers finish what an iteration that was left had given them."""
        ledger = self._ledger
        while ledger.busy or not all(worker.ready for worker in self._workers):
            try:
                self._listen()
            except BatchFailed as error:
                logger.info("of an iteration that was left: %s", error.what)


def _take_in(batches: Iterator[Any], ledger: Ledger) -> bool:
    try:
        batch = next(batches)
    except StopIteration:
        return False
    try:
        ledger.add(pack((ledger.next_index, batch)))
    except Exception as error:
        index = ledger.next_index
        raise BatchFailed(f"batch {index} cannot be sent to a worker: {error}", index=index) from error
    return True


def _pack_model(model: nn.Module, forward: Forward | None) -> memoryview:
    try:
        return pack((model, forward))
    except Exception as error:
        raise ConfigError(
            f"this {type(model).__name__} cannot be sent to a worker: {error}",
            mend="no lambdas or local classes in the model; `forward` is a function of a module",
        ) from error


def _broken(worker: Worker, traceback: str) -> WorkerBroken:
    last = traceback.strip().splitlines()[-1]
    mend = None
    if "Can't get attribute" in last or "No module named" in last:
        mend = (
            "the model's class must lie in a module that workers can import, not in a notebook or `python -c`"
        )
    return WorkerBroken(f"the worker on {worker.device} could not begin: {last}", cause=traceback, mend=mend)


def _refuse_while_importing() -> None:
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker has imported the script that makes the Predictor, and would make another",
            mend='make it below `if __name__ == "__main__":`',
        )


def _end_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().end()
