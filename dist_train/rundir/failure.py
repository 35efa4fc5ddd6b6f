"""failure.json: the root cause, its hint and the ranks that failed because of it; written by agent 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from dist_train.rundir.directory import RunDir
from dist_train.rundir.log_text.shorten_text import shorten_text
from dist_train.rundir.records import read_json, write_json_atomic

FailureClass = Literal[
    "signal",
    "out_of_memory",
    "exception",
    "exit",
    "early_exit",
    "hang",
    "node_lost",
    "victim",
    "rendezvous",
    "dist_train",
]

# In characters: a message of 50 full lines of a terminal, and 15 last lines of as much in all.
_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 32_000
_LONGEST_NAME = 1_000
_LONGEST_LINE = 500


@dataclass(frozen=True)
class Failure:
    """The failure of one rank or node, as its agent recorded it.

    Attributes:
        memory_limit: that was reached, in bytes, where the class is out_of_memory; None if it is not known.
        memory_peak: the most memory that was used under that limit, in bytes.
    """

    source: Literal["rank", "dist-train"]
    cls: FailureClass
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    host: str = ""
    pid: int | None = None
    exit_code: int = 1
    signal: int | None = None
    exception: str | None = None
    message: str = ""
    file: str | None = None
    line: int | None = None
    traceback: str | None = None
    log: str | None = None
    log_tail: tuple[str, ...] = ()
    secondary_failures: tuple[int, ...] = ()
    restarted: bool = False
    next: tuple[str, ...] = ()
    attempt: int = 0
    step: int | None = None
    hint: str | None = None
    memory_limit: int | None = None
    memory_peak: int | None = None

    def to_record(self) -> dict[str, Any]:
        """The JSON record, under the keys of version 1."""
        record = dict(vars(self))  # nothing in it can change: asdict would copy each value
        record["class"] = record.pop("cls")
        record["victims"] = record.pop("secondary_failures")
        record["mend"] = self.hint
        return record

    def shortened(self, whole: str | None = None) -> Failure:
        """The same with the middle of long texts left out, so that it fits on a terminal and in a record.

        Args:
            whole: the file that has the whole texts, to be named where something is left out.
        """

        def shorten(text: str | None, limit: int) -> str | None:
            return None if text is None else shorten_text(text, limit, whole)

        return replace(
            self,
            exception=shorten(self.exception, _LONGEST_NAME),
            message=shorten_text(self.message, _LONGEST_MESSAGE, whole),
            file=shorten(self.file, _LONGEST_NAME),
            traceback=shorten(self.traceback, _LONGEST_TRACEBACK),
            hint=shorten(self.hint, _LONGEST_MESSAGE),
            log_tail=tuple(shorten_text(line, _LONGEST_LINE) for line in self.log_tail),
        )

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Failure:
        """The inverse of `to_record`; unknown keys of later versions are ignored."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        known.setdefault("hint", record.get("mend"))
        known["secondary_failures"] = record.get("victims", ())
        for name in ("log_tail", "secondary_failures", "next"):
            known[name] = tuple(known.get(name, ()))
        return cls(cls=record["class"], **known)


def write_failure(run: RunDir, failure: Failure) -> None:
    """Write failure.json atomically."""
    write_json_atomic(run.failure, failure.to_record())


def read_failure(run: RunDir) -> Failure | None:
    """The failure, or None while there is none."""
    record = read_json(run.failure)
    return None if record is None else Failure.from_record(record)
