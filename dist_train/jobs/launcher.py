"""The interface of a launcher, and the records that it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dist_train.jobs.spec import JobSpec

Phase = Literal["pending", "running", "requeued", "done", "failed", "stopped", "unknown"]


@dataclass(frozen=True)
class Plan:
    """The bytes that will be submitted: file names relative to the run directory's plan/."""

    launcher: str
    files: tuple[tuple[str, bytes], ...]
    summary: str
    # Kept beside the files for the launcher's own submit; not itself submitted, and not printed by --dry-run.
    aside: tuple[tuple[str, bytes], ...] = ()
    # What a person should know before it runs: what was assumed, what the cluster must allow.
    notes: tuple[str, ...] = ()

    def file(self, name: str) -> bytes:
        """The content of one file of the plan; raises KeyError."""
        return dict((*self.files, *self.aside))[name]


@dataclass(frozen=True)
class JobHandle:
    """A launcher's name for a submitted job, as text: `local:4711`, `slurm:123`."""

    text: str

    @property
    def launcher(self) -> str:
        """The launcher that gave it."""
        return self.text.partition(":")[0]

    @property
    def id(self) -> str:
        """The launcher's own id."""
        return self.text.partition(":")[2]


@dataclass(frozen=True)
class JobState:
    """Where a job is; `source` says who answered (squeue, lease, verdict, …).

    `next` holds commands of the scheduler's own that help in just this state; `nodes` has a line for
    each node where the scheduler tells them apart.
    """

    phase: Phase
    source: str
    detail: str = ""
    exit_code: int | None = None
    next: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Detached(Exception):
    """Raised by `wait` on Ctrl-C where the job does not depend on this process: it goes on."""


@runtime_checkable
class Launcher(Protocol):
    """One way to run the agent on every node of a job.

    `Options` is a pydantic model of what only this launcher knows; the command line's option group
    and the config section `launch.<name>` are made from it. `plan` is pure and needs no cluster.
    """

    name: str
    Options: type[BaseModel]

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """Render what will be submitted: a pure function of its arguments."""

    def submit(self, plan: Plan) -> JobHandle:
        """Submit exactly the plan's bytes."""

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Ask where the job is; a query that fails is `unknown`, never `failed`."""

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """Lines of one rank's log, or of every rank's with a prefix."""

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """End the job; calling it again, or after the end, does nothing."""

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Follow the job to its end and return its exit code; may raise Detached."""
