"""`dist-train estimate`: the memory that a config's training takes, before it is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from dist_train.cli.launch.device_choice import job_size
from dist_train.cli.options.param_types import MemorySize
from dist_train.cli.options.shell_complete import configs_and_runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, size_flags, size_options
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import render_table, size
from dist_train.cli.run.estimate_process import ask_estimate
from dist_train.cli.run.find_config import find_config, import_folder

_HEADS = ("strategy", "mesh", "parameters", "gradients", "optimizer", "activations", "gathered", "peak")

# Of a node, where neither the config nor the command says how many it has.
_USUAL_GPUS = 8


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train estimate train.yaml  # as it stands",
        "dist-train estimate train.yaml --nodes 2 --gpus-per-node 8 --gpu-memory 80GiB",
        "dist-train estimate train.yaml strategy=fsdp trainer.precision=bf16 --gpus-per-node 8",
        "dist-train estimate digits-1 --json  # the config of a run",
    ),
)
@click.argument("source", metavar="CONFIG|RUN", shell_complete=configs_and_runs)
@click.argument("overrides", nargs=-1, metavar="[a.b=c]...")
@size_options
@once(
    "--gpu-memory",
    type=MemorySize(),
    metavar="80GiB",
    help="Say what fits into so much, and what fits at all.",
)
@json_option
def estimate(
    source: str,
    overrides: tuple[str, ...],
    nodes: int | None,
    gpus_per_node: int | None,
    gpu_memory: int | None,
    as_json: bool,
) -> int:
    """Show the memory of each rank, for each strategy at this size; no rank is started.

    Parameters, gradients and the optimizer's state are exact, from shapes. Activations come from running
    the task's loss without values on the first samples of the training data. The peak is an estimate,
    without the CUDA context, NCCL's buffers and gaps: what fits leaves a tenth of --gpu-memory free.
    """
    from dist_train.config import check_config, dump_config, load_config

    path = find_config(source)
    resolved = load_config(path, overrides, size_flags(nodes, gpus_per_node))
    folder = import_folder(path)
    check_config(resolved.config, folder, resolved.origins)
    launch = resolved.config.launch
    device, procs = job_size(launch)
    record = ask_estimate(
        {
            "config": dump_config(resolved.config),
            "folder": str(folder),
            "on_gpu": device != "cpu",
            "nodes": launch.nodes,
            "gpus_per_node": procs,
            "most_per_node": launch.gpus_per_node or _USUAL_GPUS,
            "gpu_memory": gpu_memory,
        }
    )
    if as_json:
        print_json({"source": resolved.source, "nodes": launch.nodes, "gpus_per_node": procs, **record})
    else:
        click.echo("\n".join(_text(record, launch.nodes, procs)))
    return 0


def _text(record: Mapping[str, Any], nodes: int, procs: int) -> Iterator[str]:
    rows = record["rows"]
    ranks = nodes * procs
    yield (
        f"{record['model']}: {record['parameters']:,} parameters, {size(record['parameter_bytes'])}; "
        f"optimizer {record['optimizer']}"
    )
    yield (
        f"{ranks} rank(s) ({nodes} node(s) x {procs}); batch of {record['batch_size']}, "
        f"{rows[0]['micro_batch']} sample(s) per rank and micro-batch"
    )
    yield ""
    memory = record["gpu_memory"]
    heads = _HEADS if memory is None else (*_HEADS, f"in {size(memory)}")
    yield render_table(heads, [_row(row, memory) for row in rows])
    yield ""
    yield "bytes of the rank that holds most; * the config's own strategy"
    yield from _footnotes(record)
    if memory is not None:
        yield from _verdict(record, memory)


def _row(row: Mapping[str, Any], memory: int | None) -> tuple[str, ...]:
    rank = row["ranks"][0]
    activations = None if rank["activations"] is None else rank["activations"] + rank["temporary"]
    known = activations is not None and rank["optimizer"] is not None
    cells = (
        row["strategy"] + (" *" if row["chosen"] else ""),
        " x ".join(f"{name} {count}" for name, count in row["mesh"]),
        size(rank["parameters"]),
        size(rank["gradients"]),
        "-" if rank["optimizer"] is None else size(rank["optimizer"]),
        "-" if activations is None else size(activations),
        size(rank["gathered"]),
        ("" if known else ">= ") + size(row["peak"]),
    )
    fits = {True: "fits", False: "no", None: "not known"}[row["fits"]]
    return cells if memory is None else (*cells, fits)


def _footnotes(record: Mapping[str, Any]) -> Iterator[str]:
    for row in record["rows"]:
        if row["chosen"]:
            yield from (f"{row['strategy']}: {note}" for note in row["notes"])
            if row["ranks"][0]["on_host"]:
                yield f"{row['strategy']}: parameters, gradients and optimizer state lie in CPU memory"
    yield from record["notes"]


def _verdict(record: Mapping[str, Any], memory: int) -> Iterator[str]:
    yield ""
    here, smallest = record["fitting_here"], record["smallest"]
    if here is None:
        yield f"at this size nothing fits into {size(memory)}"
    else:
        yield f"at this size the least cut that fits: {_words(record['rows'][here])}"
    if smallest is None:
        yield "no number of ranks makes it fit: a smaller batch, trainer.accumulate or bf16 may"
    else:
        yield (
            f"the fewest ranks that fit: {_words(smallest)} --nodes {smallest['nodes']} "
            f"--gpus-per-node {smallest['gpus_per_node']}"
        )


def _words(row: Mapping[str, Any]) -> str:
    """As overrides of `launch`."""
    options = [f"strategy.{name}={_yaml(value)}" for name, value in row["options"].items()]
    return " ".join([f"strategy={row['strategy']}", *options])


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"'[{', '.join(map(str, value))}]'"
    return str(value).lower() if isinstance(value, bool) else str(value)


COMMAND = estimate
