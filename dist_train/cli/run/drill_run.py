"""One short training of the digits as `dist-train launch` does it, undisturbed or with a rank killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dist_train import env
from dist_train.cli.run.bundled_example import bundled_example
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.failure import read_failure
from dist_train.rundir.result import Result, read_result

EVERY_STEPS = 10
EPOCHS = 2
STEPS = 46  # 1,438 samples in batches of 64, twice
# The first is more than the grace: a launch that gets SIGTERM saves first.
_STOP_S = (60.0, 15.0)


@dataclass(frozen=True)
class Kill:
    """`kill -9` of a rank by itself when a step begins."""

    rank: int
    step: int


@dataclass(frozen=True)
class Trained:
    """How one training ended.

    Args:
        run: its directory.
        code: the exit code of `launch`; negative where a signal ended it.
        output: its stdout and stderr.
        seconds: from its start to its end.
    """

    run: RunDir
    code: int
    output: Path
    seconds: float

    @property
    def result(self) -> Result | None:
        """The figures and hashes; None unless it was trained to the end."""
        return read_result(self.run) if self.code == 0 else None

    @property
    def restarts(self) -> list[int | None]:
        """The failed rank of each restart."""
        return [event.get("rank") for event in read_events(self.run, "restarted")]

    @property
    def killed(self) -> bool:
        """Whether its last failure was a death by `kill -9`."""
        failure = read_failure(self.run)
        return failure is not None and failure.signal == signal.SIGKILL

    @property
    def resumed_from(self) -> int | None:
        """The step of the checkpoint from which the second attempt resumed; None: there was none."""
        steps = [event.get("resume_step") for event in read_events(self.run, "attempt_started")]
        return steps[1] if len(steps) > 1 else None


def train(folder: Path, ranks: int, kill: Kill | None = None) -> Trained:
    """Train into `folder`, in a process of its own.

    Args:
        folder: the run directory; its output goes to the file of that name and `.txt`.
        ranks: processes, on CPU.
        kill: the rank, and a step after the first checkpoint.
    """
    words = ["--run-dir", str(folder), "--device", "cpu", "--gpus-per-node", str(ranks)]
    if kill is not None:
        words += ["--env", f"{env.INJECT}=kill:rank={kill.rank},step={kill.step}"]
    words += [str(bundled_example()), f"trainer.epochs={EPOCHS}", f"checkpoint.every_steps={EVERY_STEPS}"]
    output = folder.with_suffix(".txt")
    began = time.monotonic()
    code = _launch(words, output)
    return Trained(RunDir(folder), code, output, time.monotonic() - began)


def _launch(words: list[str], output: Path) -> int:
    environ = {name: value for name, value in os.environ.items() if name != env.INJECT}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dist_train.cli.main", "launch", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environ,
        )
    try:
        return process.wait()
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a launch and wait until its processes have ended: its folder is removed next."""
    # It gets a Ctrl-C of the terminal by itself; other signals only from here.
    process.terminate()
    for patience_s in _STOP_S:
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            break
        except (KeyboardInterrupt, SystemExit):
            continue  # it got the second Ctrl-C too, and kills its agents
    process.kill()
    process.wait()
