"""`dist-train devices`: the GPUs and their processes; cores and memory that a process may use."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import render_pairs, render_table, size
from dist_train.errors import ExitCode
from dist_train.jobs.gpus import Gpu, Inventory, inventory, visibility_variables, visible_among
from dist_train.jobs.machine import Machine, Usable, look


@click.command(
    cls=Verb, context_settings=SPELLINGS, epilog=examples("dist-train devices", "dist-train gpus --json")
)
@json_option
def devices(as_json: bool) -> int:
    """Show each GPU (number, UUID, memory, load, processes), and the CPU cores and memory to be had.

    The numbers are those of nvidia-smi; `#` is the number that --gpus and a process use: it counts
    only what CUDA_VISIBLE_DEVICES leaves (of AMD's, ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES).
    """
    found, machine = inventory(), look()
    visible = visible_among(list(found.gpus))
    if as_json:
        print_json(_record(found, visible, machine))
    else:
        click.echo(_text(found, visible, machine))
    return int(ExitCode.OK)


def _record(found: Inventory, visible: list[Gpu], machine: Machine) -> dict[str, Any]:
    gpus = [
        {**asdict(gpu), "visible_index": visible.index(gpu) if gpu in visible else None} for gpu in found.gpus
    ]
    return {
        "gpus": [{**gpu, "processes": list(gpu["processes"])} for gpu in gpus],
        "no_gpu_because": found.reason,
        "left_out": list(found.left_out),
        "cores": asdict(machine.cores),
        "memory": asdict(machine.memory),
        "shared_memory": machine.shared_memory,
    }


def _text(found: Inventory, visible: list[Gpu], machine: Machine) -> str:
    return "\n".join(
        [
            *_gpu_lines(found, visible),
            "",
            render_pairs(
                [
                    ("cores", _of(machine.cores, str)),
                    ("memory", _of(machine.memory, size)),
                    ("/dev/shm", "-" if machine.shared_memory is None else size(machine.shared_memory)),
                ]
            ),
        ]
    )


def _gpu_lines(found: Inventory, visible: list[Gpu]) -> list[str]:
    if not found.gpus:
        return [f"no GPU: {found.reason}"]
    heads = ("#", "GPU", "name", "memory", "load", "processes", "UUID", "PCI bus")
    rows = [_row(gpu, visible) for gpu in found.gpus]
    hidden = len(found.gpus) - len(visible)
    names = " and ".join(visibility_variables(list(found.gpus), os.environ))
    hint = [f"{hidden} of {len(found.gpus)} hidden by {names}"] if hidden else []
    return [render_table(heads, rows), *hint, *(f"not usable: {text}" for text in found.left_out)]


def _row(gpu: Gpu, visible: list[Gpu]) -> tuple[str, ...]:
    return (
        str(visible.index(gpu)) if gpu in visible else "-",
        gpu.number,
        gpu.name,
        f"{size(gpu.memory_used)} of {size(gpu.memory_total)}" if gpu.memory_total else "-",
        "-" if gpu.utilisation is None else f"{gpu.utilisation} %",
        ", ".join(_process(p.pid, p.owner, p.memory_used) for p in gpu.processes) or "-",
        gpu.uuid,
        gpu.bus_id or "-",
    )


def _process(pid: int, owner: str, memory: int | None) -> str:
    return f"{pid} {owner}" + ("" if memory is None else f" {size(memory)}")


def _of(usable: Usable, show: Any) -> str:
    if usable.amount == usable.machine:
        return f"{show(usable.amount)} ({usable.reason})"
    return f"{show(usable.amount)} of {show(usable.machine)}: {usable.reason}"


COMMAND = devices
