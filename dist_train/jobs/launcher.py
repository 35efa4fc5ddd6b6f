"""The base class of launchers, and the records that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from dist_train import registry
from dist_train.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from dist_train.jobs.spec import JobSpec

Phase = Literal["pending", "running", "requeued", "done", "failed", "stopped", "unknown"]


@dataclass(frozen=True)
class Plan:
    """The bytes that will be submitted: file names relative to the run directory's plan/."""

    launcher: str
    files: tuple[tuple[str, bytes], ...]
    summary: str
    # Stored beside the files for `submit`; not submitted itself, and not printed by --dry-run.
    aside: tuple[tuple[str, bytes], ...] = ()
    # Shown before the job runs: what was assumed, what the cluster must allow.
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
        """The name of the launcher that submitted it."""
        return self.text.partition(":")[0]

    @property
    def id(self) -> str:
        """The launcher's own id."""
        return self.text.partition(":")[2]


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Args:
        source: what answered: squeue, lease, events, …
        next: commands of the scheduler that help in this state.
        nodes: one line per node, where the scheduler reports them separately.
    """

    phase: Phase
    source: str
    detail: str = ""
    exit_code: int | None = None
    next: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class OptionRow(NamedTuple):
    """One option of a launcher as --help shows it.

    A launcher with rows in a module of their own (`launchers/_NAME/NAME_option_rows.py`) has its part of
    `launch --help` and of completion without an import of pydantic; its options model takes the texts from
    them. The rows of any other launcher are read from its model.

    Args:
        help: what it does.
        metavar: its value in --help; empty: as for any text.
        flags: its spellings; empty: the name of the field.
    """

    help: str
    metavar: str = ""
    flags: tuple[str, ...] = ()

    def field(self, default: Any = None, **rules: Any) -> Any:
        """The field of the options model: pydantic's Field with this description."""
        from pydantic import Field

        extra: dict[str, Any] = {"metavar": self.metavar} if self.metavar else {}
        if self.flags:
            extra["flags"] = list(self.flags)
        return Field(default=default, description=self.help, json_schema_extra=extra, **rules)


def rows_of_model(model: type[BaseModel]) -> dict[str, OptionRow]:
    """Field -> row, of every field that is an option of the command line."""
    rows = {}
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        flags = extra.get("flags", ())
        if flags is False:
            continue  # for config files only
        given = tuple(map(str, flags)) if isinstance(flags, list | tuple) else ()
        rows[name] = OptionRow(info.description or "", str(extra.get("metavar", "")), given)
    return rows


class Detached(Exception):
    """Raised by `wait` on Ctrl-C where the job does not depend on this process: it goes on."""


class SubmittedMeanwhile(KeyboardInterrupt):
    """Raised by `submit` after a Ctrl-C while the scheduler had not answered: it has taken the job."""

    def __init__(self, handle: JobHandle) -> None:
        super().__init__(handle.text)
        self.handle = handle


class SubmissionUnknown(UnavailableError):
    """Raised by `submit` where nobody knows whether the scheduler has taken the job: the run must stay."""


class Launcher(ABC):
    """One way to run the agent on every node of a job; a launcher is a subclass with a constant LAUNCHER.

    The abstract methods are what every launcher must do; the other members have defaults, and a launcher
    sets those in which it differs. `plan` is pure and needs no cluster. A launcher of another distribution
    that only has the same methods is refused when it is chosen (`load_launcher`).
    """

    name: str
    # A pydantic model of what only this launcher knows: the command line's option group and the config
    # section `launch.<name>` are made from it.
    Options: type[BaseModel]
    # Common options (by parameter name: "mem") that this launcher cannot honour -> the reason.
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Whether values of --secret are kept in the cluster, so that the launching shell need not have them.
    holds_secrets: ClassVar[bool] = False
    # Options for the contract suite, where a plan is impossible with the defaults (an image is missing).
    example: ClassVar[BaseModel | None] = None

    @abstractmethod
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """Render what will be submitted: a pure function of its arguments."""

    @abstractmethod
    def submit(self, plan: Plan) -> JobHandle:
        """Submit exactly the plan's bytes."""

    @abstractmethod
    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Query the job's state; a query that fails is `unknown`, never `failed`."""

    @abstractmethod
    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """Lines of one rank's log, or of every rank's with a prefix. Attempts count from 0, as on disk."""

    @abstractmethod
    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """End the job; calling it again, or after the end, does nothing."""

    @abstractmethod
    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Follow the job to its end and return its exit code; may raise Detached."""

    def notices(self, spec: JobSpec) -> tuple[str, ...]:
        """What this shell has and the job will not: shown before the job runs, and no part of the plan."""
        return ()

    def detach(self, handle: JobHandle, run_dir: str) -> JobHandle:
        """Make the job independent of this process; return the handle under which it goes on."""
        return handle

    def detach_output(self, handle: JobHandle) -> str:
        """What `--detach` prints on stdout."""
        return handle.text

    def run_dir_on_nodes(self, spec: JobSpec) -> Path | None:
        """The run directory as the nodes see it, where this machine does not see it; None: it is the same."""
        return None

    def command_on_nodes(
        self, handle: JobHandle, run_dir: str, words: Sequence[str], timeout_s: float
    ) -> str:
        """The output of `python WORDS` where the run directory is, for a launcher with `run_dir_on_nodes`."""
        raise UnavailableError(
            f"the launcher {self.name} runs no commands beside a job",
            hint="call dist-train on a machine that sees the run directory",
        )

    def left_after_end(self, handle: JobHandle, run_dir: str) -> str:
        """What of an ended job is still in the cluster, and what removes it; empty where there is nothing."""
        return ""


def load_launcher(name: str) -> Launcher:
    """Import the launcher called `name`; raise ConfigError for an unknown one, or for no Launcher."""
    launcher = registry.load("launchers", name)
    if isinstance(launcher, type) and issubclass(launcher, Launcher):
        raise ConfigError(
            f"the launcher {name!r} is a class, not an instance",
            cause=f"{launcher.__module__}.{launcher.__qualname__} is registered",
            hint=f"register LAUNCHER = {launcher.__name__}()",
        )
    if not isinstance(launcher, Launcher):
        kind = type(launcher)
        raise ConfigError(
            f"the launcher {name!r} is not a dist_train.jobs.Launcher",
            cause=f"{kind.__module__}.{kind.__qualname__} is another class, perhaps with the same methods",
            hint=f"in {kind.__module__}: class {kind.__name__}(dist_train.jobs.Launcher)",
        )
    absent = [attribute for attribute in ("name", "Options") if not hasattr(launcher, attribute)]
    if absent:
        kind = type(launcher)
        raise ConfigError(
            f"the launcher {name!r} has no {' and no '.join(absent)}",
            hint=f"set it in {kind.__module__}.{kind.__qualname__}",
        )
    return launcher
