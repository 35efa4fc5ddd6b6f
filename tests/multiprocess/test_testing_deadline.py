"""launch_cli: a deadline ends the command with all processes that it has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.testing import CliTimedOut, launch_cli
from dist_train.testing.process_tree import pid_is_alive

# `slow`: it waits for its deadline, which is what an agent and a rank need to start on a busy machine.
pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def test_a_deadline_ends_the_command_its_agents_and_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(
        "import os, time\nopen(os.environ['RANK'] + '.pid', 'w').write(str(os.getpid()))\n"
        "print('asleep', flush=True)\ntime.sleep(300)\n"
    )
    words = ["launch", "--device", "cpu", "--gpus-per-node", "1", "sleep.py"]
    with pytest.raises(CliTimedOut, match=r"dist[-_]train[ .]agent") as caught:
        launch_cli(words, tmp_path, timeout_s=20.0)
    assert "asleep" in caught.value.partial.stdout + caught.value.partial.stderr
    pid = int((tmp_path / "0.pid").read_text())
    assert str(pid) in str(caught.value)
    assert not pid_is_alive(pid)
