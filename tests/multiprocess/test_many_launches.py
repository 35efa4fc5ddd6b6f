"""Many launches in a row exit cleanly, although torch can deadlock when DDP is freed after its group.

agent/workers/interpreter_exit.py keeps what would deadlock for ever; group_teardown frees DDP first.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from conftest import start

from dist_train import env

pytestmark = pytest.mark.multiprocess

# Objects local to a function, the group destroyed while DDP is alive: the worst case of plain torchrun.
SCRIPT = """
    import os, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rows = open(f"rows-{os.environ['RANK']}.txt", "a")

    def main():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        rows.write("1 row ")  # flushed by the end of the interpreter
        dist.destroy_process_group()

    main()
"""


@pytest.mark.proves(
    "Launches of 4 ranks x 1 step in a row all end cleanly, with DDP freed after its process group",
)
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("count", "method"),
    [
        pytest.param(3, "auto", marks=pytest.mark.proof),
        # Fewer may pass without the cure: of 300 launches of plain forked ranks some 70 hung.
        pytest.param(300, "auto", marks=pytest.mark.soak),
        pytest.param(300, "spawn", marks=pytest.mark.soak),
    ],
)
def test_launches_of_4_ranks_x_1_step_in_a_row(tmp_path: Path, count: int, method: str) -> None:
    script = tmp_path / "one_step.py"
    script.write_text(textwrap.dedent(SCRIPT))
    for number in range(count):
        finished = start(
            tmp_path,
            f"r{number}",
            *("--gpus-per-node", 4, "--max-restarts", 0, script),
            timeout_s=120,
            env={env.START_METHOD: method},
        )
        assert finished.cli.code == 0, f"launch {number}: {finished.cli}"
        # The agent ends a rank that hangs with 0 where its script had ended: that is a hang, too.
        assert "cut off" not in finished.cli.stderr, f"launch {number}: {finished.cli}"
    written = [path.read_text() for path in sorted(tmp_path.glob("rows-*.txt"))]
    assert written == ["1 row " * count] * 4
