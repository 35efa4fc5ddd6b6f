"""`dist-train diff`: the first step in which two runs differ, in which rank, and with which samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.options.shell_complete import runs as complete_runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import number, render_table
from dist_train.cli.run.find_run import find_run, read_job
from dist_train.cli.run.sample_process import ask_samples
from dist_train.errors import ConfigError, DistTrainError, ExitCode, UsageError
from dist_train.rundir import RunDir
from dist_train.rundir.display_number import display_number
from dist_train.rundir.name_ranks import name_ranks

if TYPE_CHECKING:
    from dist_train.reports.diff_runs import FieldDifference, RunDifference

_KINDS = {"train": "training", "eval": "evaluation"}
_DIFFERENT = 1
_MOST_RANKS = 4
_MOST_IDS = 16


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train diff digits-1 digits-2",
        "dist-train diff digits-1 @last --json; echo $?  # 1 where they differ",
    ),
)
@click.argument("a", metavar="RUN", shell_complete=complete_runs)
@click.argument("b", metavar="RUN", shell_complete=complete_runs)
@json_option
def diff(a: str, b: str, as_json: bool) -> int:
    """Find the first step in which two RUNs differ, to the last bit, in what they have recorded.

    Compares each step's last record and the weights of checkpoints of the same step. Ends with 0 where
    nothing differs, with 1 where something does.
    """
    from dist_train.reports.diff_runs import diff_runs

    run_a, run_b = find_run(a), find_run(b)
    if run_a == run_b:
        raise UsageError(f"{a} and {b} are one run: {run_a.path}", hint="name another run")
    found = diff_runs(run_a, run_b)
    if not found.compared and not (found.equal_weights or found.other_weights):
        raise ConfigError(
            f"{a} and {b} have nothing to compare",
            cause=f"no record and no checkpoint of the same step: {found.only_a} records and {found.only_b}",
            hint=f"dist-train compare {a} {b}",
        )
    samples = [_samples(run, found) for run in (run_a, run_b)]
    inputs = _inputs(run_a, run_b)
    if as_json:
        print_json(_record((run_a, run_b), found, samples, inputs))
    else:
        click.echo("\n".join(_lines((a, b), found, samples, inputs)))
    return _DIFFERENT if found.differs else int(ExitCode.OK)


def _lines(
    names: tuple[str, str],
    found: RunDifference,
    samples: Sequence[dict[str, Any]],
    inputs: dict[str, tuple[Any, Any]],
) -> list[str]:
    lines = [_headline(names, found)]
    if found.fields:
        lines.append(render_table(("", *names, ""), [_field_row(field) for field in found.fields]))
    lines += _rank_lines(found)
    lines += _sample_lines(names, found, samples)
    lines += _checkpoint_lines(found)
    if inputs:
        rows = [(key, *(str(one) for one in pair)) for key, pair in inputs.items()]
        lines.append(render_table(("WHAT THEY WERE GIVEN", *names), rows))
    elif found.differs:
        lines.append("config (what determines results), code and versions are equal")
    return lines


def _headline(names: tuple[str, str], found: RunDifference) -> str:
    records = f"{found.compared} records compared"
    if found.only_a or found.only_b:
        records += f", {found.only_a} and {found.only_b} more are in one run only"
    if found.step is None:
        same = "no record differs" if found.compared else "no record in common"
        return f"{names[0]} and {names[1]}: {same}; {records}"
    before = (
        "nothing before it is equal" if found.last_equal is None else f"equal up to step {found.last_equal}"
    )
    kind = _KINDS.get(str(found.kind), found.kind)
    line = f"{names[0]} and {names[1]} differ from step {found.step} on ({kind}); {before}; {records}"
    gap = found.step - (found.last_equal or 0)
    if gap > 1:
        line += (
            f"\nthe {gap - 1} steps before it were not recorded: with trainer.log_every_steps=1 in both runs "
            "the step is exact"
        )
    return line


def _field_row(field: FieldDifference) -> tuple[str, ...]:
    relative = field.relative
    note = "" if relative is None else f"differ by {relative:.2g} of it"
    return ("  " + field.name, _figure(field.a), _figure(field.b), note)


def _figure(value: Any) -> str:
    """All digits: two floats that differ never look equal."""
    return repr(value) if isinstance(value, float) else number(value)


def _rank_lines(found: RunDifference) -> list[str]:
    if found.kind != "train" or found.step is None:
        return []
    if found.ranks is None:
        return [
            "which rank is not known: each rank's loss is recorded by both runs only at equal size, up to 64"
        ]
    if found.ranks:
        return [f"own loss differs: {name_ranks(found.ranks)}"]
    return ["each rank's own loss is equal: it is the backward pass, or the exchange of gradients"]


def _sample_lines(
    names: tuple[str, str], found: RunDifference, samples: Sequence[dict[str, Any]]
) -> list[str]:
    if found.step is None:
        return []
    first, second = samples
    if first == second:
        return _ids_text("samples of that step", first)
    return [
        line
        for name, one in zip(names, samples, strict=True)
        for line in _ids_text(f"samples of {name}", one)
    ]


def _ids_text(title: str, one: dict[str, Any]) -> list[str]:
    if "why_not" in one:
        return [f"{title}: not known ({one['why_not']})"]
    title += f" (epoch {display_number(one['epoch'])})"
    if "all" in one:
        return [f"{title}, all ranks: {_ids(one['all'])}"]
    ranks: dict[int, list[int]] = one["ranks"]
    lines = [f"{title}, rank {rank}: {_ids(ids)}" for rank, ids in list(ranks.items())[:_MOST_RANKS]]
    if len(ranks) > _MOST_RANKS:
        lines.append(f"{title}: {len(ranks) - _MOST_RANKS} more ranks; --json has all")
    return lines


def _ids(ids: Sequence[int]) -> str:
    more = f", … ({len(ids)} in all)" if len(ids) > _MOST_IDS else ""
    return ", ".join(map(str, ids[:_MOST_IDS])) + more


def _checkpoint_lines(found: RunDifference) -> list[str]:
    texts = []
    if found.equal_weights:
        texts.append(f"equal weights at step {', '.join(map(str, found.equal_weights))}")
    if found.other_weights:
        texts.append(f"other weights at step {', '.join(map(str, found.other_weights))}")
    return [f"checkpoints: {'; '.join(texts)}"] if texts else []


def _samples(run: RunDir, found: RunDifference) -> dict[str, Any]:
    """{ranks: {rank: ids}} of the step that differs; {why_not} where the order is not known."""
    from dist_train.reports.step_samples import step_request

    if found.step is None or found.kind != "train":
        return {"why_not": "they follow from a training step"}
    request = step_request(run, read_job(run), found.step)
    if isinstance(request, str):
        return {"why_not": request}
    try:
        by_rank = ask_samples(request.asked)
    except DistTrainError as error:
        return {"why_not": error.what}
    if not request.by_rank:
        return {"epoch": request.epoch, "all": by_rank[0]}
    return {"epoch": request.epoch, "ranks": _of_interest(by_rank, found.ranks)}


def _of_interest(by_rank: dict[int, list[int]], ranks: tuple[int, ...] | None) -> dict[int, list[int]]:
    """Those of the ranks that differ, where they are known."""
    return {rank: ids for rank, ids in by_rank.items() if rank in ranks} if ranks else by_rank


def _inputs(a: RunDir, b: RunDir) -> dict[str, tuple[Any, Any]]:
    """What determines the results and is not equal: config, data, size, versions."""
    from dist_train.reports.run_inputs import read_inputs

    of_a, of_b = (read_inputs(run, read_job(run)) for run in (a, b))
    return {
        key: (of_a.get(key), of_b.get(key))
        for key in dict.fromkeys([*of_a, *of_b])
        if of_a.get(key) != of_b.get(key)
    }


def _record(
    runs: tuple[RunDir, RunDir],
    found: RunDifference,
    samples: Sequence[dict[str, Any]],
    inputs: dict[str, tuple[Any, Any]],
) -> dict[str, Any]:
    return {
        "runs": [run.path for run in runs],
        "differs": found.differs,
        "step": found.step,
        "kind": found.kind,
        "last_equal": found.last_equal,
        "compared": found.compared,
        "only": [found.only_a, found.only_b],
        "fields": [{**asdict(field), "relative": field.relative} for field in found.fields],
        "ranks": None if found.ranks is None else list(found.ranks),
        "samples": samples,
        "checkpoints": {"equal": list(found.equal_weights), "other": list(found.other_weights)},
        "inputs": inputs,
    }


COMMAND = diff
