"""`dist-train status`: where a run is, who says so, and what to do next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from dist_train.cli.facts import Facts, gather
from dist_train.cli.json_output import print_json
from dist_train.cli.options import SPELLINGS, json_option, run_argument
from dist_train.cli.runs import OpenedRun, open_run
from dist_train.cli.standing import ask, is_unknown, never_began
from dist_train.cli.table import age, number, render_pairs
from dist_train.cli.verb import Verb, examples
from dist_train.errors import ExitCode
from dist_train.jobs.launcher import JobState
from dist_train.rundir import telling
from dist_train.rundir.failure import Failure
from dist_train.rundir.report import guilty_name
from dist_train.rundir.result import Result, read_result


@dataclass(frozen=True)
class Status:
    """One run at one moment."""

    opened: OpenedRun
    state: JobState
    facts: Facts

    @property
    def failure(self) -> Failure | None:
        """Why it ended; a failure that a restart mended is not told of a run that works again."""
        return self.facts.failure if self.state.phase == "failed" else None

    @property
    def result(self) -> Result | None:
        """The figures of a run that is done."""
        return read_result(self.opened.run) if self.state.phase == "done" else None

    @property
    def next(self) -> list[str]:
        """Commands that make sense now: the scheduler's own first."""
        return [*self.state.next, *self._next]

    @property
    def _next(self) -> list[str]:
        word = self.opened.word
        if self.state.phase in ("running", "requeued"):
            return [f"dist-train logs {word} --follow", f"dist-train cancel {word}"]
        if self.state.phase == "pending" and not never_began(self.opened, self.state):
            return [f"dist-train status {word}", f"dist-train cancel {word}"]
        if self.state.phase == "done":
            kept = self.facts.checkpoint_step is not None
            return [f"dist-train checkpoint list {word}" if kept else f"dist-train logs {word}"]
        if is_unknown(self.state):
            return [f"dist-train status {word}"]
        guilty = self.failure
        rank = (
            [] if guilty is None or guilty.rank is None else [f"dist-train logs {word} --rank {guilty.rank}"]
        )
        return [*rank, f"dist-train resume {word}"]


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train status  # of the newest run",
        "dist-train status digits-1 --json",
        "dist-train status --exit-code; echo $?  # for scripts",
    ),
)
@run_argument
@json_option
@click.option(
    "--exit-code", "answer_with_it", is_flag=True, help="End with the run's exit code (69: none yet)."
)
def status(run: str, as_json: bool, answer_with_it: bool) -> int:
    """Say where RUN is, and who answered. Ends with 0 if it could answer."""
    opened = open_run(run)
    found = Status(opened, ask(opened), gather(opened.run))
    if as_json:
        print_json(to_json(found))
    else:
        click.echo(render_pairs(_pairs(found)))
    if not answer_with_it:
        return int(ExitCode.UNAVAILABLE if is_unknown(found.state) else ExitCode.OK)
    if found.state.exit_code is None:
        click.echo(f"[dist-train] {opened.word} is {found.state.phase}: it has no exit code", err=True)
        return int(ExitCode.UNAVAILABLE)
    return found.state.exit_code


def to_json(found: Status) -> dict[str, Any]:
    """The object of `--json`; `list --json` holds one per run."""
    opened, state, facts = found.opened, found.state, found.facts
    result = found.result
    return {
        "name": opened.run.path.name,
        "run_id": opened.spec.run_id,
        "run_dir": opened.run.path,
        "launcher": opened.launcher.name,
        "handle": opened.handle.text,
        "nodes": opened.spec.nodes,
        "procs_per_node": opened.spec.procs_per_node,
        "device": opened.spec.device,
        "phase": state.phase,
        "source": state.source,
        "detail": state.detail,
        "nodes_now": list(state.nodes),
        "exit_code": state.exit_code,
        "attempt": facts.attempt,
        "restarts": facts.restarts,
        "max_restarts": opened.spec.max_restarts,
        "submitted_age_s": facts.submitted_age_s,
        "devices": [asdict(device) for device in facts.devices],
        "checkpoint": None
        if facts.checkpoint_step is None
        else {"step": facts.checkpoint_step, "age_s": facts.checkpoint_age_s},
        "train": facts.train,
        "evaluation": facts.evaluation,
        "result": None if result is None else {name: getattr(result, name) for name in _RESULT},
        "failure": None if found.failure is None else found.failure.to_record(),
        "next": found.next,
    }


_RESULT = (
    "steps",
    "epochs",
    "samples",
    "metrics",
    "weights_hash",
    "state_hash",
    "metrics_hash",
    "samples_per_s",
)


def _pairs(found: Status) -> list[tuple[str, str]]:
    opened, state, facts = found.opened, found.state, found.facts
    spec = opened.spec
    rows = [
        ("run", f"{opened.run.path.name}  ({opened.run.path})"),
        ("phase", state.phase),
        ("says", f"{state.source}: {state.detail}" if state.detail else state.source),
        (
            "job",
            f"{opened.handle.text}, {spec.nodes} node(s) x {spec.procs_per_node} processes on {spec.device}",
        ),
        ("submitted", f"{age(facts.submitted_age_s)} ago"),
        *_progress(opened, facts),
    ]
    if state.nodes:
        rows.insert(3, ("nodes", "\n".join(state.nodes)))
    rows += [
        (name, figures(record))
        for name, record in (("train", facts.train), ("evaluation", facts.evaluation))
        if record
    ]
    if state.phase == "running":
        rows += _pace(facts.train)
    if found.failure is not None:
        rows.append(("failure", _failure(found.failure)))
    if state.exit_code is not None:
        rows.append(("exit code", str(state.exit_code)))
    return [*rows, ("next", "\n".join(found.next))]


def _progress(opened: OpenedRun, facts: Facts) -> list[tuple[str, str]]:
    """From the run's own records, where they can be seen from here."""
    if opened.elsewhere is not None and facts.attempt is None:
        return [("records", f"{opened.elsewhere} on the nodes' run volume")]
    used = f"{number(facts.attempt)}, {facts.restarts} of {opened.spec.max_restarts} restarts used"
    return [("attempt", used), *_devices(opened, facts), ("checkpoint", _checkpoint(facts))]


def _devices(opened: OpenedRun, facts: Facts) -> list[tuple[str, str]]:
    """Where there are GPUs: each rank's, or what the launcher gave while no rank has said which it took."""
    if facts.devices:
        return [("devices", "\n".join(str(device) for device in facts.devices))]
    given = [(node, opened.spec.gpus_of(node)) for node in range(opened.spec.nodes)]
    lines = [f"node {node} was given {', '.join(gpus)}" for node, gpus in given if gpus]
    return [("devices", "\n".join(lines))] if lines else []


def _checkpoint(facts: Facts) -> str:
    if facts.checkpoint_step is None:
        return "none"
    return f"step {facts.checkpoint_step}, {age(facts.checkpoint_age_s)} ago"


def figures(record: dict[str, Any]) -> str:
    """`step 140, epoch 6, loss 0.0312, accuracy 0.97`."""
    places = {name: record[name] for name in ("step", "epoch") if name in record}
    measured = telling.measured(record)
    order = sorted(measured, key=lambda name: (name != "loss", name))
    told = [*places.items(), *((name, measured[name]) for name in order)]
    return ", ".join(f"{name} {number(value)}" for name, value in told)


def _pace(record: dict[str, Any] | None) -> list[tuple[str, str]]:
    """`lr 0.004, 4336 samples/s, data wait 5 %, Time 0.015 (0.016), …, ETA 0:20`, as far as the run told."""
    parts = (telling.speed, telling.data_wait, telling.columns, telling.standing)
    told = [] if record is None else [text for part in parts for text in part(record)]
    return [("pace", ", ".join(told))] if told else []


def _failure(failure: Failure) -> str:
    lines = [f"{guilty_name(failure)} ({failure.cls}): {failure.message}"]
    if failure.file is not None:
        lines.append(f"at {failure.file}:{failure.line}")
    if failure.log is not None:
        lines.append(f"log {failure.log}")
    return "\n".join(lines)


COMMAND = status
