"""Profile the optimizer steps that `launch --profile` names, in this rank, whatever its loop is.

Steps are counted by a hook that torch calls after every step of every optimizer; those of the first
optimizer that steps count, so that a loop with two has one count. Nothing here may end a training: what
fails is said in a line.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dist_train import env
from dist_train.distributed.after_import import act_after_import
from dist_train.profiling.profiled_steps import ProfiledSteps, parse_steps
from dist_train.profiling.trace_file import FACTS, compress_trace, export_path, trace_path
from dist_train.rundir.directory import RunDir
from dist_train.rundir.format_amounts import size

_OPTIMIZERS = "torch.optim.optimizer"


def profile_steps(environ: Mapping[str, str]) -> None:
    """Begin to count as soon as the script has torch's optimizers; imports nothing of torch itself."""
    try:
        steps = parse_steps(environ[env.PROFILE])
    except ValueError as error:
        _say(f"no profile: {env.PROFILE}={environ[env.PROFILE]}: {error}")
        return
    if steps is None:
        return
    attempt, rank = int(environ[env.ATTEMPT]), int(environ["RANK"])
    path = trace_path(RunDir(Path(environ[env.RUN_DIR])), attempt, rank)
    facts = {"rank": rank, "world_size": int(environ["WORLD_SIZE"]), "attempt": attempt}
    profiler = StepProfiler(steps, path, facts, _start_torch_profiler)
    act_after_import(_OPTIMIZERS, lambda: _count(profiler))


def _count(profiler: StepProfiler) -> None:
    sys.modules[_OPTIMIZERS].register_optimizer_step_post_hook(profiler.stepped)
    atexit.register(profiler.end)


class StepProfiler:
    """Counts the steps of one rank and profiles those asked for.

    Args:
        path: where the trace is written.
        facts: put into the trace.
        start: starts torch's profiler for so many steps after one that warms it up.
    """

    def __init__(
        self,
        steps: ProfiledSteps,
        path: Path,
        facts: Mapping[str, Any],
        start: Callable[[int], Any],
    ) -> None:
        self._steps = steps
        self._path = path
        self._facts = facts
        self._start = start
        self._optimizer: weakref.ref[Any] | None = None
        self._done = 0
        self._profile: Any = None
        self._over = False
        self._pid = os.getpid()

    def stepped(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Count a step; called by torch after it."""
        if self._over or not self._counts(optimizer):
            return
        self._done += 1
        # The step before the first is the profiler's warm-up.
        if self._done < self._steps.first - 2:
            return
        try:
            self._act()
        except Exception as error:
            self._give_up(error)

    def _counts(self, optimizer: Any) -> bool:
        counted = None if self._optimizer is None else self._optimizer()
        if counted is None:
            self._optimizer = weakref.ref(optimizer)
            return True
        return counted is optimizer

    def _act(self) -> None:
        if self._profile is None:
            self._profile = self._start(self._steps.count)
            return
        if self._done in (self._steps.first - 1, self._steps.last):
            _await_device()  # what was begun before the first step is not of it, what the last began is
        if self._done == self._steps.last:
            self._write(self._steps.count)
        else:
            self._profile.step()

    def end(self) -> None:
        """At the exit of the process: write what is there, and say which steps never came."""
        if self._over or os.getpid() != self._pid:
            return
        complete = self._done - self._steps.first + 1
        try:
            if complete > 0:
                self._write(complete)
            elif self._done:
                _say(
                    f"no profile: this attempt ended after step {self._done}, before step {self._steps.first}"
                )
                if self._profile is not None:
                    self._profile.stop()
            else:
                _say("no profile: no optimizer of torch made a step")
        except Exception as error:
            self._give_up(error)
        self._over = True

    def _write(self, complete: int) -> None:
        self._over = True
        profile, first = self._profile, self._steps.first
        facts = {**self._facts, **_device_facts(), "first": first, "complete": complete}
        profile.add_metadata_json(FACTS, json.dumps(facts))
        profile.stop()
        path = self._path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with export_path(path, complete) as raw:
                profile.export_chrome_trace(str(raw))
                compress_trace(raw, path)
        finally:
            self._profile = None  # with its events
        run = path.parents[2]
        _say(
            f"profile of steps {first} to {first + complete - 1}: {path.relative_to(run)} "
            f"({size(path.stat().st_size)}); `dist-train profile {_short(run)}` shows it"
        )

    def _give_up(self, error: Exception) -> None:
        self._over, profile = True, self._profile
        self._profile = None
        _say(f"no profile: {_shown(error)}; the training goes on")
        try:
            if profile is not None:
                profile.stop()
        except Exception:  # it was not running
            pass


def _start_torch_profiler(steps: int) -> Any:
    from torch import cuda, profiler

    activities = [profiler.ProfilerActivity.CPU]
    if cuda.is_available():
        activities.append(profiler.ProfilerActivity.CUDA)
    started = profiler.profile(
        activities=activities,
        schedule=profiler.schedule(wait=0, warmup=1, active=steps, repeat=1),
        record_shapes=True,
    )
    started.start()
    return started


def _await_device() -> None:
    from torch import cuda

    if cuda.is_available() and cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda.synchronize()


def _device_facts() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"host": socket.gethostname(), "torch": torch.__version__, "device": "this CPU"}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        facts["device"] = torch.cuda.get_device_name()
        facts["tf32_matmul"] = torch.get_float32_matmul_precision() != "highest"
        facts["tf32_convolution"] = bool(torch.backends.cudnn.allow_tf32)
    return facts


def _shown(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + ("" if error.filename is None else f": {error.filename}")
    return f"{type(error).__name__}: {error}"


def _short(run: Path) -> str:
    here = Path.cwd()
    return str(run.relative_to(here)) if run.is_relative_to(here) else str(run)


def _say(text: str) -> None:
    print(f"[dist-train] {text}", file=sys.stderr, flush=True)
