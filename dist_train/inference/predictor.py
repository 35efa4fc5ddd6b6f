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

from dist_train.checkpoint.state.module_state import unwrap
from dist_train.errors import ConfigError, UsageError
from dist_train.inference.batch_queue import BATCHES_PER_WORKER, MAX_DEATHS, BatchQueue
from dist_train.inference.prediction_errors import BatchFailed, WorkerBroken
from dist_train.inference.serialization import pack
from dist_train.inference.worker_devices import Device, worker_devices
from dist_train.inference.worker_handle import Worker
from dist_train.inference.worker_loop import Forward

logger = logging.getLogger(__name__)


class Predictor:
    """Computes batches with one process per device. Use it in a `with` block, or close it.

        with dt.Predictor(model, devices=["cuda:0", "cuda:3"]) as predictor:
            for outputs in predictor.predict(batches):
                ...

    Results come in the order of their batches, with tensors on the CPU. Where a worker dies, its batches
    are computed by another and a new worker replaces it: no result is lost or returned twice. A batch that
    has ended three workers, or on which the model raises, raises BatchFailed with its index.

    The workers are spawned: a script makes a Predictor below `if __name__ == "__main__":`, and the model's
    class must be importable.

    Args:
        model: wrapped or not; its weights are copied as they are now, and put into eval mode there.
        devices: one worker each. Default: every visible GPU, else one CPU process.
        processes: the number of CPU processes instead.
        forward: what to compute, as f(model, batch); default model(batch).
        threads: CPU threads of each worker (they are part of the bits).

    Raises:
        ConfigError: devices that are not there; WorkerBroken: a worker could not start.
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
        self.devices = tuple(worker_devices(devices, processes))
        self._threads = threads
        self._packed_model = _pack_model(unwrap(model), forward)
        self._workers: list[Worker] = []
        # Also where nobody closes it: when it is collected, or the interpreter exits.
        self._end = weakref.finalize(self, _end_all, self._workers)
        self._queue = BatchQueue(len(self.devices))
        # Consecutive workers that died before they were ready.
        self._failed_starts = 0
        try:
            for device in self.devices:
                self._workers.append(self._start(device))
            while not all(worker.ready for worker in self._workers):
                self._listen()
        except BaseException:
            self.close()
            raise

    def predict(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the model's results in the order of the batches, which are taken as they are needed.

        At most 4 batches per worker are in flight. One iteration at a time: a new one ends the last.

        Raises:
            BatchFailed: naming the batch; the predictor can be used again.
        """
        if not self._end.alive:
            raise UsageError("this Predictor is closed", hint="use it inside its `with` block")
        with self._whole_messages():
            self._drain()
        self._queue = BatchQueue(len(self._workers))
        return self._run(iter(batches), self._queue)

    def close(self) -> None:
        """End the workers, also busy ones; may be called again."""
        self._end()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, batches: Iterator[Any], queue: BatchQueue) -> Iterator[Any]:
        more = True
        self._refuse_abandoned(queue)
        while True:
            with self._whole_messages():
                more = self._assign(batches, queue, more)
            yielded = False
            for result in queue.results():
                yielded = True
                yield result
                self._refuse_abandoned(queue)
            if not more and queue.settled:
                return
            if not yielded:
                with self._whole_messages():
                    self._listen()

    @contextmanager
    def _whole_messages(self) -> Iterator[None]:
        """Close after a signal: it may have cut a message to or from a worker, and the rest is unreadable."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise

    def _refuse_abandoned(self, queue: BatchQueue) -> None:
        if queue is not self._queue or not self._end.alive:
            raise UsageError(
                "this iteration has ended: the Predictor was closed, or predict() was called again",
                hint="one iteration at a time for each Predictor",
            )

    def _assign(self, batches: Iterator[Any], queue: BatchQueue, more: bool) -> bool:
        """Fill the workers' queues, one batch each before any has two; return False after the last batch."""
        for count in range(BATCHES_PER_WORKER):
            for number, worker in enumerate(self._workers):
                if not worker.ready or queue.held(number) > count:
                    continue
                entry = queue.assign(number)
                if entry is None and more and not queue.full:
                    more = _add_next(batches, queue)
                    entry = queue.assign(number)
                if entry is not None:
                    worker.send(entry.payload)  # _listen replaces a dead one
        return more

    def _listen(self) -> None:
        """Wait until a worker sends a message or dies, and handle it."""
        active = wait([handle for worker in self._workers for handle in worker.wait_for])
        for number, worker in enumerate(list(self._workers)):
            if any(handle in active for handle in worker.wait_for):
                self._handle(number, worker, worker.receive())

    def _handle(self, number: int, worker: Worker, message: Any | None) -> None:
        if message is None:
            self._replace(number, worker)
        elif message[0] == "ready":
            worker.ready = True
            self._failed_starts = 0
        elif message[0] == "broken":
            raise _broken(worker, message[1])
        elif message[0] == "done":
            self._queue.finish(number, message[1], message[2])
        else:
            index = self._queue.drop(number)
            text = f"batch {index} on {worker.device}: {message[2]}"
            raise BatchFailed(text, index=index, traceback=message[3])

    def _replace(self, number: int, worker: Worker) -> None:
        description = worker.exit_description()
        if not worker.ready:
            self._failed_starts += 1
        # A killed one may be started again; one that exited by itself would exit again.
        if not worker.ready and (self._failed_starts >= MAX_DEATHS or not worker.killed):
            raise WorkerBroken(
                f"{description} before it was ready",
                hint='a script makes its Predictor below `if __name__ == "__main__":`; '
                "signal 9 is often the kernel's out-of-memory killer",
            )
        worker.end()
        self._workers[number] = self._start(worker.device)
        lost = self._queue.held(number)
        self._queue.requeue(number, description)
        logger.warning("%s; a new one is started, %s batches are computed again", description, lost)

    def _start(self, device: str) -> Worker:
        return Worker(device, self._threads, self._packed_model, self.start_method)

    def _drain(self) -> None:
        """Let the workers finish the batches of an iteration that was abandoned."""
        queue = self._queue
        while queue.busy or not all(worker.ready for worker in self._workers):
            try:
                self._listen()
            except BatchFailed as error:
                logger.info("of an abandoned iteration: %s", error.what)


def _add_next(batches: Iterator[Any], queue: BatchQueue) -> bool:
    try:
        batch = next(batches)
    except StopIteration:
        return False
    try:
        queue.add(pack((queue.next_index, batch)))
    except Exception as error:
        index = queue.next_index
        raise BatchFailed(f"batch {index} cannot be sent to a worker: {error}", index=index) from error
    return True


def _pack_model(model: nn.Module, forward: Forward | None) -> memoryview:
    try:
        return pack((model, forward))
    except Exception as error:
        raise ConfigError(
            f"this {type(model).__name__} cannot be sent to a worker: {error}",
            hint="no lambdas or local classes in the model; `forward` is a function of a module",
        ) from error


def _broken(worker: Worker, traceback: str) -> WorkerBroken:
    last = traceback.strip().splitlines()[-1]
    hint = None
    if "Can't get attribute" in last or "No module named" in last:
        hint = (
            "the model's class must be in a module that workers can import, not in a notebook or `python -c`"
        )
    return WorkerBroken(f"the worker on {worker.device} could not start: {last}", cause=traceback, hint=hint)


def _refuse_while_importing() -> None:
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker has imported the script that makes the Predictor, and would make another",
            hint='make it below `if __name__ == "__main__":`',
        )


def _end_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().end()
