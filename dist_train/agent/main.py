"""Run one agent: settings, run directory, node, exit."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.node import Node
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.settings import Settings
from dist_train.agent.warm_parent.forked_rank import RankForked
from dist_train.agent.workers.cpu_binding import choose_cpus
from dist_train.agent.workers.process_title import set_title
from dist_train.agent.workers.rank_gpus import choose_slices
from dist_train.agent.workers.rank_output import STOPPED_READER_S, RankOutput
from dist_train.agent.workers.start_method import choose_start_method
from dist_train.errors import DistTrainError, ExitCode
from dist_train.jobs.gpus import visible_gpus
from dist_train.jobs.orphans import wait_for_trackers
from dist_train.jobs.parent_death_signal import end_with_parent
from dist_train.jobs.terminal_writer import TerminalWriter

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> RankForked:
    """Run one agent; returns only in a rank that its warm parent has forked."""
    end = AgentExit(int(ExitCode.INTERNAL), "the agent failed")
    platform = platform_of(os.environ.get(env.LAUNCHER, ""))
    settings: Settings | None = None
    forked: RankForked | None = None
    try:
        settings = read_settings(argv)
        end = _run(settings, platform)
    except RankForked as rank:
        forked = rank
    except DistTrainError as error:
        _print(f"error: {error}")
        end = AgentExit.from_error(int(error.exit_code), error, settings)
        if settings is not None and settings.node == 0:
            _report_startup_error(platform, settings, end.code, error.what)
    except SystemExit as leaving:
        # --help: argparse has printed it. Nothing else here raises it.
        end = AgentExit(int(ExitCode.INTERNAL if leaving.code else ExitCode.OK), "left before it began")
    except KeyboardInterrupt:
        end = AgentExit(int(ExitCode.INTERRUPTED), "interrupted")
    except BaseException as error:
        end = AgentExit(int(ExitCode.INTERNAL), f"the agent failed: {error!r}")
        logging.getLogger("dist_train").exception("the agent failed")
        import traceback

        traceback.print_exc()
    finally:
        if forked is None:
            _leave(end, platform, settings)
    return forked


def _leave(end: AgentExit, platform: Platform, settings: Settings | None) -> NoReturn:
    platform.report_exit(end, settings, os.environ)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # the terminal is gone; the exit code still counts
    # torch's store threads must not delay the exit.
    os._exit(end.exit_code)


def _run(settings: Settings, platform: Platform) -> AgentExit:
    if settings.parent_pid is not None:
        end_with_parent(settings.parent_pid, signal.SIGTERM)
    join_by = time.monotonic() + settings.join_s
    set_title(f"dist-train agent node={settings.node} run={settings.run.path}")
    start_method = choose_start_method(settings, os.environ)  # before any thread starts
    output = RankOutput(settings.host, settings.show_ranks)
    try:
        platform.prepare(settings, join_by, output.note)
        _log_to_file(settings)
        earlier = platform.earlier_exit(settings)
        if earlier is not None:
            output.note(earlier.why)
            return earlier
        settings = _place_ranks(settings, platform, output)
        return Node(settings, platform, output, join_by, start_method).run()
    finally:
        if left := output.close():
            logger.warning("%d lines of output were not shown: the terminal's reader had stopped", left)
        wait_for_trackers()  # the end of a pod or of a job step would kill them


def _place_ranks(settings: Settings, platform: Platform, output: RankOutput) -> Settings:
    """Choose the ranks' GPUs and cores; which cores is said for node 0, and in each node's log."""
    gpus = visible_gpus() if settings.device == "cuda" else []
    settings, line = choose_cpus(
        choose_slices(settings, gpus, os.environ), platform.nodes_share_a_machine, gpus
    )
    if line:
        logger.info(line)
        if settings.node == 0 or platform.replaces_nodes:
            output.note(line)
    return settings


def _report_startup_error(platform: Platform, settings: Settings, code: int, why: str) -> None:
    try:
        platform.report_startup_error(settings, code, why)
    except OSError as error:
        _print(f"[dist-train] the verdict could not be written: {error}")


def _print(text: str) -> None:
    """Print on stderr; an agent does not wait for ever for its terminal's reader, for others wait for it."""
    writer = TerminalWriter(lambda dropped: None)
    writer.put(sys.stderr, f"{text}\n".encode(errors="replace"), always=True)
    writer.close(STOPPED_READER_S)


def _log_to_file(settings: Settings) -> None:
    settings.run.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.raiseExceptions = False  # a full disk: the ranks' logs tell of it
    handler = logging.FileHandler(settings.run.logs / f"node-{settings.node}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("dist_train", "torch.distributed.elastic"):
        package = logging.getLogger(name)
        package.setLevel(logging.INFO)
        package.addHandler(handler)
        package.propagate = False
