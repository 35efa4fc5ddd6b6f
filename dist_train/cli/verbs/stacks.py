"""`dist-train stacks`: where each rank of a running job is, as Python stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.run.find_run import OpenedRun, open_run
from dist_train.cli.run.job_state import query_state
from dist_train.errors import ExitCode, NotFoundError, UnavailableError, UsageError
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.requests.stacks_command import command_words, read_output
from dist_train.rundir.requests.stacks_request import RankStacks, ask_and_wait

_POD_S = 150.0  # for a pod that asks: to be put on a node, to load its image, to ask


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples("dist-train stacks  # of the newest run", "dist-train stacks digits-1 --rank 3"),
)
@run_argument
@once("--rank", type=Count(0), help="Of one rank only.  [default: all]")
@json_option
def stacks(run: str, rank: int | None, as_json: bool) -> int:
    """Print the Python stacks of RUN's ranks, each of its threads. The run goes on unchanged.

    Ranks with the same stacks are printed once. Takes at most 30 s (on Kubernetes a pod asks, which has to
    start first); ends with 69 if a rank has not answered, and names it.
    """
    opened = open_run(run)
    ranks = _expected(opened, rank)
    _refuse_ended(opened)
    found = _ask(opened, ranks, () if rank is None else (rank,))
    whole = [*found, *_silent(opened, ranks, found)]
    if as_json:
        print_json({"run_dir": opened.run.path, "ranks": [asdict(one) for one in whole]})
    else:
        click.echo("\n".join(_text(whole)))
    return int(ExitCode.OK if all(one.text is not None for one in whole) else ExitCode.UNAVAILABLE)


def _expected(opened: OpenedRun, rank: int | None) -> list[int]:
    size = opened.spec.world_size
    if rank is not None and rank >= size:
        raise UsageError(f"--rank {rank}: {opened.short_name} has ranks 0 to {size - 1}")
    return list(range(size)) if rank is None else [rank]


def _refuse_ended(opened: OpenedRun) -> None:
    state = query_state(opened)
    if state.phase != "running":
        raise NotFoundError(
            f"no rank of {opened.short_name} runs: it is {state.phase}",
            cause=state.detail or None,
            hint=f"dist-train status {opened.short_name}",
        )


def _ask(opened: OpenedRun, ranks: Sequence[int], chosen: Sequence[int]) -> list[RankStacks]:
    nodes = sorted({rank // opened.spec.procs_per_node for rank in ranks})
    on_nodes = opened.run_dir_on_nodes
    if on_nodes is None:
        return ask_and_wait(opened.run, nodes, chosen)
    click.echo("[dist-train] asking by a pod on the run volume: some seconds until it runs", err=True)
    words = command_words(on_nodes, nodes, chosen)
    said = opened.launcher.command_on_nodes(opened.handle, opened.run_dir, words, _POD_S)
    try:
        return read_output(said)
    except ValueError as error:
        raise UnavailableError(f"the pod that asked has no answer: {error}") from error


def _silent(opened: OpenedRun, ranks: Sequence[int], found: Sequence[RankStacks]) -> list[RankStacks]:
    """The ranks of which nobody has said anything."""
    answered = {one.rank for one in found}
    why = "the agent of its node has not answered, or runs no ranks now"
    return [RankStacks(rank, "", 0, problem=why) for rank in ranks if rank not in answered]


def _text(found: Sequence[RankStacks]) -> Iterator[str]:
    alike: dict[tuple[str | None, str, str], list[RankStacks]] = {}
    for one in found:
        alike.setdefault((one.text, one.how, one.problem), []).append(one)
    for number, ((text, how, problem), ranks) in enumerate(alike.items()):
        if number:
            yield ""
        where = ", ".join(f"{one.host} pid {one.pid}" for one in ranks[:4] if one.pid)
        more = f", … ({len(ranks)} in all)" if len(ranks) > 4 else ""
        title = name_ranks(one.rank for one in ranks) + (f" ({where}{more})" if where else "")
        yield f"{title}: {problem}" if text is None else f"{title}{f': {how}' if how else ''}"
        if text is not None:
            yield text.rstrip("\n")


COMMAND = stacks
