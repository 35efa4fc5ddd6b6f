"""Everything that a run directory says, as far as it can be read: what cannot be is named, and left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dist_train.reports.attempts import Attempt, attempts_of, event_time
from dist_train.reports.config_values import ConfigValue, read_config
from dist_train.reports.metric_curves import MetricCurves, read_curves
from dist_train.reports.rank_times import Seconds, read_rank_times
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps
from dist_train.rundir.device_record import RankDevice, read_devices
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.records import parse_line, read_json
from dist_train.rundir.step_names import step_name
from dist_train.rundir.times.read_times import read_times

T = TypeVar("T")
# Newest ones that are listed; a run of weeks has tens of thousands.
MOST_COMMITS = 200


@dataclass(frozen=True)
class Commit:
    """A checkpoint as its event tells of it.

    Args:
        at: by the wall clock.
        size: its bytes; None where it is not there any more.
    """

    step: int
    attempt: int | None
    at: float | None
    size: int | None


@dataclass(frozen=True)
class Events:
    """events.jsonl: all but the commits, of which the newest are kept."""

    events: tuple[dict[str, Any], ...] = ()
    commits: tuple[dict[str, Any], ...] = ()
    commit_count: int = 0


@dataclass(frozen=True)
class RunRecords:
    """What a run's files say.

    Args:
        job: job.json; empty where it cannot be read.
        times: where rank 0's time went, as `status --json` has it.
        rank_times: seconds by part of each rank.
        fingerprints: versions and hashes, by attempt.
        kept_steps: checkpoints that are there now.
        problems: what could not be read.
    """

    run: RunDir
    job: Mapping[str, Any]
    attempts: tuple[Attempt, ...]
    submitted: tuple[float, ...]
    commits: tuple[Commit, ...]
    commit_count: int
    kept_steps: tuple[int, ...]
    metrics: MetricCurves
    result: Mapping[str, Any] | None
    failure: Failure | None
    times: Mapping[str, Any] | None
    rank_times: Mapping[int, Seconds]
    fingerprints: Mapping[int, Mapping[str, Any]]
    devices: tuple[RankDevice, ...]
    config: tuple[ConfigValue, ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its directory."""
        return self.run.path.name

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job as job.json holds it."""
        spec = self.job.get("spec")
        return spec if isinstance(spec, dict) else {}

    @property
    def is_script(self) -> bool:
        """Whether its target is a script or module of the user's."""
        target = self.spec.get("target")
        return isinstance(target, dict) and target.get("kind") != "config"

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The newest attempt's versions and hashes."""
        return self.fingerprints[max(self.fingerprints)] if self.fingerprints else {}

    @property
    def began(self) -> float | None:
        """The wall clock at second 0 of its curves."""
        return self.metrics.began


def read_records(run: RunDir) -> RunRecords:
    """Read all of it; raises nothing for a damaged, unreadable or missing file."""
    problems: list[str] = []

    def tried(what: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            problems.append(f"{what} cannot be read: {_why(error)}")
            return default

    job = tried("job.json", lambda: _object(run.job), dict[str, Any]())
    events = tried("events.jsonl", lambda: _events(run.events, problems), Events())
    attempts = attempts_of(events.events)
    submitted = [
        at for event in events.events if event.get("kind") == "submitted" and (at := event_time(event))
    ]
    began = min([*submitted, *(attempt.began for attempt in attempts)], default=None)
    metrics = tried("metrics.jsonl", lambda: read_curves(run.metrics, began), MetricCurves())
    problems += _metric_problems(metrics)
    spec = job.get("spec")
    target = spec.get("target") if isinstance(spec, dict) else None
    is_script = isinstance(target, dict) and target.get("kind") != "config"
    newest = max((attempt.number for attempt in attempts), default=0)
    return RunRecords(
        run=run,
        job=job,
        attempts=attempts,
        submitted=tuple(submitted),
        commits=tried("checkpoints", lambda: _commits(run, events), ()),
        commit_count=events.commit_count,
        kept_steps=tried("checkpoints", lambda: tuple(committed_steps(run)), ()),
        metrics=metrics,
        result=tried("result.json", lambda: read_json(run.result), None),
        failure=tried("failure.json", lambda: read_failure(run), None),
        times=tried("the times of attempts", lambda: _times(run, is_script), None),
        rank_times=tried("the clocks of ranks", lambda: read_rank_times(run, is_script), {}),
        fingerprints=tried("fingerprint.json", lambda: _fingerprints(run), {}),
        devices=tried("devices.json", lambda: read_devices(run, newest), ()),
        config=tried("config.yaml", lambda: read_config(run), ()),
        problems=tuple(problems),
    )


def _object(path: Path) -> dict[str, Any]:
    record = read_json(path)
    if record is None:
        raise ValueError("it is not there" if not path.exists() else "it is not a JSON object")
    return record


def _events(path: Path, problems: list[str]) -> Events:
    events: list[dict[str, Any]] = []
    commits: deque[dict[str, Any]] = deque(maxlen=MOST_COMMITS)
    count = unreadable = 0
    with path.open("rb") as file:
        for line in file:
            event = parse_line(line)
            if event is None:
                unreadable += bool(line.strip())
            elif event.get("kind") == "checkpoint_committed":
                commits.append(event)
                count += 1
            else:
                events.append(event)
    if unreadable:
        lines = "1 line" if unreadable == 1 else f"{unreadable} lines"
        problems.append(f"{lines} of events.jsonl cannot be read (damaged, or cut off by a kill)")
    return Events(tuple(events), tuple(commits), count)


def _metric_problems(metrics: MetricCurves) -> list[str]:
    found = []
    if metrics.unreadable:
        lines = "1 line" if metrics.unreadable == 1 else f"{metrics.unreadable} lines"
        found.append(f"{lines} of metrics.jsonl cannot be read (damaged), and are left out")
    if metrics.torn:
        found.append("the last line of metrics.jsonl is cut off (its writer was killed, or writes it now)")
    return found


def _commits(run: RunDir, events: Events) -> tuple[Commit, ...]:
    return tuple(
        Commit(event["step"], event.get("attempt"), event_time(event), _size(run, event["step"]))
        for event in events.commits
        if isinstance(event.get("step"), int)
    )


def _size(run: RunDir, step: int) -> int | None:
    folder = run.checkpoints / step_name(step)
    if not (folder / "manifest.json").exists():
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _times(run: RunDir, is_script: bool) -> dict[str, Any] | None:
    found = read_times(run, is_script)
    return None if found is None else found.to_record()


def _fingerprints(run: RunDir) -> dict[int, dict[str, Any]]:
    folders = [path for path in run.attempts.glob("*") if path.name.isdigit()]
    found = {int(path.name): read_json(path / "fingerprint.json") for path in folders}
    return {number: found[number] or {} for number in sorted(found) if found[number]}


def _why(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"[:200]
