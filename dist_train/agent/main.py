"""The agent's life: what it is told, the run directory, its node's part, how it leaves."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from dist_train.agent import reaper, settings, submissions
from dist_train.agent.console import Console
from dist_train.agent.node import Node
from dist_train.agent.prepare import prepare
from dist_train.agent.recorder import write_verdict
from dist_train.agent.settings import Settings
from dist_train.agent.termination import End, of_error, tell
from dist_train.agent.title import set_title
from dist_train.agent.workers import UNREAPED
from dist_train.errors import DistTrainError, ExitCode
from dist_train.jobs.parent import end_with_parent


def main(argv: Sequence[str]) -> None:
    """Run one agent; does not return."""
    end = End(int(ExitCode.INTERNAL), "the agent failed")
    told: Settings | None = None
    try:
        told = settings.read(argv)
        if told.parent_pid is not None:
            end_with_parent(told.parent_pid, signal.SIGTERM)
        join_by = time.monotonic() + told.join_s
        if told.in_pod:
            reaper.start(lambda: UNREAPED)
            prepare(told, join_by, Console(told.host).note)
        _log_to_file(told)
        set_title(f"dist-train agent node={told.node} run={told.run.path}")
        over = submissions.ended(told)
        if over is not None:
            Console(told.host).note(over.why)
        end = over or Node(told, join_by).run()
    except DistTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        end = of_error(int(error.exit_code), error, told)
        if told is not None and told.node == 0 and told.launcher != "local":
            _tell_launcher(told, end.code, error.what)
    except SystemExit as leaving:
        # --help: argparse has printed it. Nothing else here leaves so.
        end = End(int(ExitCode.INTERNAL if leaving.code else ExitCode.OK), "left before it began")
    except KeyboardInterrupt:
        end = End(int(ExitCode.INTERRUPTED), "interrupted")
    except BaseException as error:
        end = End(int(ExitCode.INTERNAL), f"the agent failed: {error!r}")
        logging.getLogger("dist_train").exception("the agent failed")
        import traceback

        traceback.print_exc()
    finally:
        tell(end, told)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass  # the terminal is gone; the code must still be told
        # torch's store threads must not hold the exit up.
        os._exit(end.exit_code)


def _tell_launcher(told: Settings, code: int, why: str) -> None:
    """Node 0 ends before any attempt: without a verdict its launcher would take it for lost."""
    if told.in_pod:
        return  # it reads the termination message, and the volume may be what is wrong
    try:
        write_verdict(told, code, why)
    except OSError as error:
        print(f"[dist-train] the verdict could not be written: {error}", file=sys.stderr)


def _log_to_file(told: Settings) -> None:
    told.run.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.FileHandler(told.run.logs / f"node-{told.node}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("dist_train", "torch.distributed.elastic"):
        package = logging.getLogger(name)
        package.setLevel(logging.INFO)
        package.addHandler(handler)
        package.propagate = False
