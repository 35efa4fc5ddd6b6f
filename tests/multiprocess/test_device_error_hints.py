"""The failure block of a rank that fails on its devices or its loader workers has a hint."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from conftest import Launch

from dist_train.rundir.failure import read_failure

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof]

SCRIPT = """
    import os, signal, sys
    import torch
    import dist_train as dt

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 2, device="meta")

        def forward(self, batch):
            return self.head(batch["image"])

    class Deadly(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    what = sys.argv[1]
    with dt.init(seed=0):
        if what == "unlike":
            Net()({"image": torch.zeros(1, 2)})
        else:
            for batch in dt.loader(Deadly(), batch_size=2, workers=1):
                pass
"""


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            "unlike",
            "argument \"batch['image']\" of Net.forward is on cpu, its parameters on meta: batch = dt.to_",
        ),
        ("worker", "out of memory, or of /dev/shm ("),
    ],
)
def test_the_failure_has_a_hint(launch: Launch, tmp_path: Path, what: str, expected: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    finished = launch("r", "--max-restarts", 0, script, what, timeout_s=60)
    assert finished.cli.code == 1, finished.cli
    _, rule, block = finished.cli.stderr.rpartition("\nFAILED: rank 0 ")
    assert rule, finished.cli
    assert f"  hint    {expected}" in block
    failure = read_failure(finished.run)
    assert failure is not None
    assert failure.hint is not None
    assert expected in failure.hint
    log = Path(str(failure.log)).read_text()
    assert "Traceback" in log
    assert "[dist-train] hint: " in log
