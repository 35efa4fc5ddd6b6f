"""Steps, saves and loads where a model is spread over ranks, beside torch's own DDP, fully_shard and DCP.

All cases run in one job of `--ranks` processes on this machine (gloo), in interleaved rounds, each between
two barriers: seconds of rank 0. Ranks share the cores, and what GPUs would exchange over NVLink is copied
by the processor here: the ratios to torch's own loops count, not the seconds. Nothing is asserted.

    python benchmarks/sharded_models.py [--rounds 20] [--ranks 2] [--mib 1024]

`--mib`: bytes of parameters and of AdamW's state together, over all ranks, for saves and loads.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.distributed.checkpoint as dcp
from measurements import Aim, Row, add_arguments, interleaved, row, show
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.models.transformer import ByteTransformer
from dist_train.testing import run_ranks

MIB = 1 << 20
CONTEXT, BATCH, LAYERS = 64, 8, 12
Times = dict[str, list[float | None]]


def transformer() -> nn.Module:
    """Some 0.5 million parameters."""
    torch.manual_seed(0)
    return ByteTransformer(width=96, depth=4, heads=4, context=CONTEXT, dropout=0.0)


def by_hand(sharded: bool) -> nn.Module:
    """As torch's tutorials do it."""
    model = transformer()
    if not sharded:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def step_of(model: nn.Module, samples: int = BATCH) -> Callable[[], None]:
    """One step of training on the same batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 256, (samples, CONTEXT + 1))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def step_of_stages(model: nn.Module, samples: int, micro_batches: int) -> Callable[[], None]:
    """One step of a pipeline on the same batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.randint(0, 256, (samples, CONTEXT + 1)).chunk(micro_batches)

    def loss_sum(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    def step() -> None:
        optimizer.zero_grad()
        dt.forward_backward(model, batches, loss_sum, [batch[:, 1:].numel() for batch in batches])
        optimizer.step()

    return step


def timed(work: Callable[[], object]) -> float:
    """Seconds until all ranks have done it."""
    torch_dist.barrier()
    began = time.perf_counter()
    work()
    torch_dist.barrier()
    return time.perf_counter() - began


def measure_steps(rounds: int) -> Times:
    """Seconds of five steps of each loop."""
    with dt.init(device="cpu", seed=0):
        models = {
            "ddp by hand": by_hand(False),
            "dt.prepare, ddp": dt.prepare(transformer()),
            "fully_shard by hand": by_hand(True),
            "dt.prepare, fsdp": dt.prepare(transformer(), "fsdp"),
        }
        steps = {name: step_of(model) for name, model in models.items()}
        for step in steps.values():
            step()

        cases = {name: partial(seconds_of_five, step) for name, step in steps.items()}
        return interleaved(cases, rounds)


def measure_cut_models(rounds: int, strategy: str) -> Times:
    """Seconds of a step of a strategy whose ranks compute each sample together, beside DDP's."""
    with dt.init(device="cpu", seed=0) as run:
        by_ddp = step_of(by_hand(False))
        model = dt.prepare(transformer(), strategy)
        samples = BATCH * run.world_size
        if strategy == "pipeline":
            cut = step_of_stages(model, samples, 4)
        else:
            cut = step_of(model, samples)
        steps = {"ddp by hand": by_ddp, f"dt.prepare, {strategy}": cut}
        for step in steps.values():
            step()
        return interleaved({name: partial(seconds_of_five, step) for name, step in steps.items()}, rounds)


def seconds_of_five(step: Callable[[], None]) -> float:
    """Of one of five steps."""
    return timed(lambda: [step() for _ in range(5)]) / 5


def large(mib: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Layers of so many bytes in all with AdamW's two moments."""
    width = int((mib * MIB / 12 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    model = dt.prepare(model, "fsdp", units=["Linear"])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def measure_checkpoints(rounds: int, mib: int, folder: str) -> Times:
    """Seconds of a save and of a load; every save writes into a new folder."""
    with dt.init(device="cpu", seed=0) as run:
        model, optimizer = large(mib)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        number = iter(range(1, 10**6))
        kept = CheckpointManager(Path(folder) / "kept", run_id="b", attempt=0)
        kept.save(1, state)
        dcp.save(flat(model, optimizer), checkpoint_id=f"{folder}/dcp-kept")

        def ours() -> float:
            out = Path(folder) / f"ours-{next(number)}"
            manager = CheckpointManager(out, run_id="b", attempt=0)
            return removed(out, run.is_main, timed(lambda: manager.save(1, state)))

        def theirs() -> float:
            out = Path(folder) / f"dcp-{next(number)}"
            return removed(
                out, run.is_main, timed(lambda: dcp.save(flat(model, optimizer), checkpoint_id=out))
            )

        def load_theirs() -> None:
            into = flat(model, optimizer)
            dcp.load(into, checkpoint_id=f"{folder}/dcp-kept")
            set_state_dict(
                model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"]
            )

        cases = {
            "save: ours": ours,
            "save: DCP": theirs,
            "load: ours, verified": lambda: timed(lambda: kept.load_latest(state)),
            "load: DCP": lambda: timed(load_theirs),
        }
        return interleaved(cases, rounds)


def flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What DCP saves, by torch's own function."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def removed(out: Path, is_main: bool, seconds: float) -> float:
    """Remove a folder that all ranks are done with."""
    torch_dist.barrier()
    if is_main:
        with suppress(FileNotFoundError):
            shutil.rmtree(out)
    torch_dist.barrier()
    return seconds


def rows_of(measured: str, times: Times, bases: dict[str, tuple[str, Aim | None]]) -> list[Row]:
    """A row for each case, with its ratio to its base."""
    rows = []
    for case, values in times.items():
        base, aim = bases.get(case, ("", None))
        rows.append(
            row("sharded_models", measured, case, values, "s", (base, times[base]) if base else None, aim)
        )
    return rows


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description="steps, saves and loads of sharded models")
    add_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    steps = run_ranks(measure_steps, options.ranks, 3600, args=(options.rounds,))[0]
    where = f"{options.ranks} ranks"
    bases = {
        "dt.prepare, ddp": ("ddp by hand", None),
        "dt.prepare, fsdp": ("fully_shard by hand", None),
        "fully_shard by hand": ("ddp by hand", None),
    }
    show(rows_of(f"one step of 0.5 M parameters, {where}", steps, bases), options.record)
    for strategy in ("tensor_parallel", "pipeline"):
        cut = run_ranks(measure_cut_models, options.ranks, 3600, args=(options.rounds, strategy))[0]
        against_ddp: dict[str, tuple[str, Aim | None]] = {f"dt.prepare, {strategy}": ("ddp by hand", None)}
        show(rows_of(f"one step of 0.5 M parameters, {where}, {strategy}", cut, against_ddp), options.record)
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        times = run_ranks(
            measure_checkpoints, options.ranks, 3600, args=(options.rounds, options.mib, folder)
        )[0]
    against = {"save: ours": ("save: DCP", None), "load: ours, verified": ("load: DCP", None)}
    show(rows_of(f"{options.mib} MiB over {where}, fsdp", times, against), options.record)


if __name__ == "__main__":
    main()
