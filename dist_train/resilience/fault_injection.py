"""Injected faults, by rank and step: by them tests and drills check that recovery works.

DIST_TRAIN_INJECT holds faults separated by `;`, each `kind:key=value,...`:

    kill:rank=1,step=17            SIGKILL itself when step 17 begins
    kill:rank=0,step=14,at=save    SIGKILL during the first save at step 14 or later
    exit:rank=2,step=5,code=3      sys.exit(3)
    raise:rank=0,step=4            an exception of the user's kind
    hang:rank=1,step=9             never returns
    term:rank=0,step=6             SIGTERM to itself

Each fires once in a run: before it fires, a marker file is created in the run directory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_train import env
from dist_train.errors import ConfigError

KINDS = ("kill", "exit", "raise", "hang", "term")
_KEYS = ("rank", "step", "at", "code", "after_ms")


class InjectedFault(RuntimeError):
    """Stands for an exception of the user's code."""


@dataclass(frozen=True)
class Fault:
    """One entry of the list; `index` is its position there."""

    index: int
    kind: str
    rank: int
    step: int
    at: str = "step"
    code: int = 1
    after_ms: float = 2.0


class FaultPlan:
    """The faults of this rank.

    Args:
        faults: all faults of the run.
        rank: this rank; the others' faults are dropped.
        markers: folder for the marker files of fired faults; None keeps them in memory.
    """

    def __init__(self, faults: tuple[Fault, ...] = (), rank: int = 0, markers: Path | None = None) -> None:
        self._faults = [fault for fault in faults if fault.rank == rank]
        self._markers = markers
        self._fired: set[int] = set()

    @classmethod
    def from_env(
        cls, rank: int, run_dir: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> FaultPlan:
        """Read DIST_TRAIN_INJECT; empty where it is not set."""
        text = (os.environ if environ is None else environ).get(env.INJECT, "")
        return cls(parse(text), rank, run_dir / "control" if run_dir is not None else None)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def at_step(self, step: int) -> None:
        """Fire what is due when a step begins."""
        for fault in self._faults:
            if fault.at == "step" and fault.step == step and self._take(fault):
                _fire(fault)

    def at_save(self, step: int) -> None:
        """Fire what is due in a save, from another thread a few ms after its start."""
        for fault in self._faults:
            if fault.at == "save" and step >= fault.step and self._take(fault):
                threading.Timer(fault.after_ms / 1000, _fire, (fault,)).start()

    def _take(self, fault: Fault) -> bool:
        """Return True for the first caller in the whole run, over all attempts."""
        if fault.index in self._fired:
            return False
        self._fired.add(fault.index)
        if self._markers is None:
            return True
        self._markers.mkdir(parents=True, exist_ok=True)
        try:
            os.close(
                os.open(self._markers / f"fault-{fault.index}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            )
        except FileExistsError:
            return False
        return True


def parse(text: str) -> tuple[Fault, ...]:
    """Parse the grammar above; ConfigError names the entry that is wrong."""
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    return tuple(_parse_one(index, entry) for index, entry in enumerate(entries))


def _parse_one(index: int, entry: str) -> Fault:
    kind, _, rest = entry.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
    unknown = [key for key in pairs if key not in _KEYS]
    if kind not in KINDS or unknown or not {"rank", "step"} <= pairs.keys():
        raise _wrong(entry)
    at = pairs.pop("at", "step")
    if at not in ("step", "save"):
        raise _wrong(entry)
    try:
        after_ms = float(pairs.pop("after_ms", "2"))
        numbers = {key: int(value) for key, value in pairs.items()}
    except ValueError:
        raise _wrong(entry) from None
    return Fault(index, kind, numbers["rank"], numbers["step"], at, numbers.get("code", 1), after_ms)


def _wrong(entry: str) -> ConfigError:
    return ConfigError(
        f"{env.INJECT}: {entry!r} is not a fault",
        cause=f"kinds: {', '.join(KINDS)}; keys: {', '.join(_KEYS)}; rank and step are needed",
        hint="for instance kill:rank=1,step=17 or kill:rank=0,step=14,at=save",
    )


def _fire(fault: Fault) -> None:
    where = f"injected {fault.kind} at {fault.at} {fault.step} of rank {fault.rank}"
    if fault.kind == "raise":
        raise InjectedFault(where)
    if fault.kind == "exit":
        raise SystemExit(fault.code)
    if fault.kind == "hang":
        while True:
            time.sleep(3600)
    os.kill(os.getpid(), signal.SIGTERM if fault.kind == "term" else signal.SIGKILL)
