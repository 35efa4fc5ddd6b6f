"""How long 2 to 64 ranks of one machine take to form their groups: dt.init beside torch's own call.

The ranks are forked from this process, which has imported torch, and begin at one moment; the time is that
until the last of them is ready. TCP: a store that this process serves, as an agent does; file: a new one in
a temporary directory. dt.init also compares what the ranks are, and forms a second group. No assertions.

    python benchmarks/init_groups.py [--rounds 20] [--ranks 2 8 32 64] [--record FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import measurements
import torch
import torch.distributed as torch_dist
from measurements import Aim, interleaved, row, show

import dist_train as dt
import dist_train.resilience.session  # what dt.init imports, as a warm parent has it
from dist_train.env import RankInfo
from dist_train.errors import DistTrainError
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

AIM_S = 0.3
AIM_RANKS = 32
TIMEOUT_S = 60.0


def ours(start_at: float, method: str) -> float:
    """The moment at which this rank is ready."""
    _wait_until(start_at)
    with dt.init(device="cpu", timeout_s=TIMEOUT_S, init_method=method):
        return time.monotonic()


def torchs(start_at: float, method: str) -> float:
    """The same by torch alone."""
    _wait_until(start_at)
    info = RankInfo.from_env()
    torch_dist.init_process_group("gloo", init_method=method, rank=info.rank, world_size=info.world_size)
    ready = time.monotonic()
    torch_dist.destroy_process_group()
    return ready


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def seconds(form: Callable[[float, str], float], ranks: int, by_file: bool) -> float | None:
    """From the start of all ranks to the last one that is ready; None where they do not form a group."""
    with tempfile.TemporaryDirectory(prefix="init-groups-") as folder:
        method = f"file://{Path(folder) / 'store'}" if by_file else "env://"
        start_at = time.monotonic() + 0.3 + 0.02 * ranks
        try:
            ready = run_ranks(form, ranks, 3 * TIMEOUT_S, args=(start_at, method))
        except (RanksFailed, DistTrainError) as error:
            print(f"  failed: {str(error).splitlines()[0]}", flush=True)
            return None
    return max(ready) - start_at


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements.add_arguments(parser)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 8, 32, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for ranks in options.ranks:
        cases = {
            "dt.init, TCP": partial(seconds, ours, ranks, False),
            "torch, TCP": partial(seconds, torchs, ranks, False),
            "dt.init, file": partial(seconds, ours, ranks, True),
            "torch, file": partial(seconds, torchs, ranks, True),
        }
        found = interleaved(cases, options.rounds)
        rows = []
        for name, values in found.items():
            peer = f"torch, {name.rpartition(' ')[2]}"
            base = None if name == peer else (peer, found[peer])
            rows.append(row("init_groups", f"{ranks} ranks", name, values, "s", base))
            if ranks == AIM_RANKS and base is not None:
                aim = (f"{AIM_S} s", [AIM_S] * len(values))
                rows.append(
                    row("init_groups", f"{ranks} ranks", f"{name}, aim", values, "s", aim, Aim(at_most=1.0))
                )
        show(rows, options.record)


if __name__ == "__main__":
    main()
