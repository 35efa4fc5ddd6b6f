"""dt.init: join the job from a process's environment and open its Run."""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
from collections.abc import Callable

import torch

from dist_train.distributed import devices
from dist_train.distributed.cuda_visible_devices import warn_if_changed
from dist_train.distributed.device_map import record_devices
from dist_train.distributed.group_teardown.teardown import Teardown, tear_down
from dist_train.distributed.init_groups import ProcessGroups, init_groups
from dist_train.distributed.run import Run, current
from dist_train.distributed.seeding import RankSeeding, check_seed, seed_all
from dist_train.env import RankInfo, WorkerEnv
from dist_train.errors import ConfigError
from dist_train.resilience.stop import StopFlag, StopVote
from dist_train.resilience.watchdog import HangWatchdog
from dist_train.rundir.times.span_clock import MEMBERSHIP, SET_UP, span_clock

logger = logging.getLogger(__name__)


def init(
    seed: int | None = None,
    timeout_s: float = 600.0,
    *,
    device: str | None = None,
    init_method: str | None = None,
    collective_timeout_s: float | None = None,
) -> Run:
    """Join the job: bind the device, form the process groups, seed, watch for a stop.

    Called again while the run is open, it returns the same run. The groups are destroyed on every way
    out: `with dt.init() as run`, run.close(), an exception, the end of the script.

    Args:
        seed: seeds python, numpy and torch (CUDA too): alike on all ranks until dt.prepare, so that
            a random split is the same everywhere, and differently on each rank from there on. None
            leaves them alone (run.seed is then chosen by rank 0, or derived from the run's id under
            our agent, so that a restart finds the same sample order).
        timeout_s: how long ranks wait for each other, at the start and in every collective.
        collective_timeout_s: another timeout for the collectives.
        device: cpu, cuda or auto; None takes the launcher's, else auto.
        init_method: env://, tcp://host:port or file:///path; None takes the launcher's.

    Raises:
        ConfigError: if variables, device, seed or init method are wrong on this rank.
        RendezvousError: if not all ranks join in time.
    """
    if seed is not None:
        check_seed(seed)
    opened = current()
    if opened is not None:
        return _reuse_open_run(opened, seed, device)
    span_clock().switch(MEMBERSHIP)
    info, worker = RankInfo.from_env(), WorkerEnv.from_env()
    if worker is not None and worker.threads_per_rank is not None:
        torch.set_num_threads(worker.threads_per_rank)
    requested = device or (worker.device if worker else "auto")
    if requested != "cpu":
        warn_if_changed(alone=worker is None and info.world_size == 1)
    bound = devices.bind(requested, info)
    started = init_groups(
        info,
        bound,
        init_method=init_method or (worker.init_method if worker else "env://"),
        timeout_s=timeout_s,
        collective_timeout_s=collective_timeout_s,
        attempt=worker.attempt if worker else None,
        seed=seed,
    )
    busy = functools.partial(devices.is_busy, bound) if bound.type == "cuda" else None
    watchdog = HangWatchdog(collective_timeout_s or timeout_s, info.rank, busy)
    run = _open_run(info, worker, bound, started, watchdog, seed)
    span_clock().switch(SET_UP)
    return run


def _open_run(
    info: RankInfo,
    worker: WorkerEnv | None,
    device: torch.device,
    started: ProcessGroups,
    watchdog: HangWatchdog,
    seed: int | None,
) -> Run:
    control = started.control
    agreed_seed = _seed_of_run(started, seed, worker)
    record_devices(control, info, device, worker.run_dir if worker else None, worker.attempt if worker else 0)
    if seed is not None:
        # As rank 0 on every rank: what the script draws before dt.prepare is the same everywhere.
        seed_all(seed, 0)
    flag = StopFlag(worker.stop_file if worker else None, info.local_rank)
    vote = StopVote(control, flag)

    def leave_run(how: Teardown) -> None:
        atexit.unregister(run.close_at_exit)
        watchdog.close()
        flag.close()
        if tear_down(control, how):
            started.clean_up()

    run = Run(
        info,
        device,
        control=control,
        exchange=started.exchange,
        seed=agreed_seed,
        directory=worker.run_dir if worker else None,
        run_id=worker.run_id if worker else "",
        attempt=worker.attempt if worker else 0,
        on_close=leave_run,
        vote=vote.agreed,
        progress=_progress(watchdog, flag),
        rank_seeding=RankSeeding(seed),
        keep_alive=watchdog.keep_alive,
    )
    atexit.register(run.close_at_exit)
    run.make_current()
    return run


def _progress(watchdog: HangWatchdog, flag: StopFlag) -> Callable[[str, int | None], None]:
    def mark(what: str, step: int | None) -> None:
        watchdog.mark(what)
        flag.mark(step)

    return mark


def _seed_of_run(started: ProcessGroups, seed: int | None, worker: WorkerEnv | None) -> int:
    """The seed that was given, on all ranks alike; else one that all ranks choose alike."""
    if seed is not None:
        return seed
    chosen = started.drawn
    if worker is not None and worker.run_id:
        chosen = int.from_bytes(hashlib.sha256(worker.run_id.encode()).digest()[:4], "big")
    if started.control.is_main:
        logger.info("no seed given: run.seed is %d", chosen)
    return chosen


def _reuse_open_run(opened: Run, seed: int | None, device: str | None) -> Run:
    if seed is not None and seed != opened.seed:
        raise ConfigError(
            f"dt.init(seed={seed}): this run was started with seed {opened.seed}",
            hint="call dt.init once, or close the run first",
        )
    if device not in (None, "auto", opened.device.type):
        raise ConfigError(
            f"dt.init(device={device!r}): this run is on {opened.device}",
            hint="call dt.init once, or close the run first",
        )
    return opened
