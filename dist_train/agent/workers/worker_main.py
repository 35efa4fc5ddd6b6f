"""The first code of every rank: bind it to its agent, run the user's target, record its error.

    python -u -P -m dist_train.agent.workers.worker_main AGENT_PID KIND VALUE [ARGS...]

The user's script needs no decorator: an exception is written to TORCHELASTIC_ERROR_FILE before its
traceback is printed. `__main__` is the script's own module to the end, and the process leaves as the
interpreter does: threads are joined, exit functions run, globals are finalized (see interpreter_exit).
"""

from __future__ import annotations

import builtins
import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

import dist_train
from dist_train import env
from dist_train.agent.warm_parent.hiding_files import forget_hidden_modules, hint_for_hidden_module
from dist_train.agent.warm_parent.shared_modules import SharedModules
from dist_train.agent.workers.bind_rank import bind_to_cpus
from dist_train.agent.workers.interpreter_exit import InterpreterExit
from dist_train.agent.workers.process_title import set_title
from dist_train.agent.workers.script_pieces import script_pieces
from dist_train.agent.workers.signals.dropped_interrupts import raise_dropped_interrupts
from dist_train.agent.workers.signals.rank_signals import agent_interrupts, stop_is_asked, take_sigterm
from dist_train.agent.workers.stacks.stack_answer import answer_stack_requests
from dist_train.distributed.group_teardown.process_group_lifetime import keep_groups_once_torch_is_imported
from dist_train.errors import DistTrainError, ExitCode, forget_interrupt
from dist_train.jobs.parent_death_signal import end_with_parent
from dist_train.rundir import RunDir
from dist_train.rundir.times.clock_file import RANKS_WITH_A_CLOCK, clock_path
from dist_train.rundir.times.span_clock import BODY, IDLE, SCRIPT, STOPPING, span_clock, start_clock

_OUR_PROGRAM = "dist_train.entrypoint"
_OUR_FOLDER = str(Path(dist_train.__file__).resolve().parent)


def main(argv: list[str], shared: SharedModules | None = None) -> NoReturn:
    """Run one rank; leaves by SystemExit.

    Args:
        argv: pid of its agent, kind and value of the target, arguments of the target.
        shared: what a forked rank shares with its parent.
    """
    # Before anything registers an exit function, so that its own runs after all others.
    leaving = InterpreterExit.watch(os.environ, shared)
    end_with_parent(int(argv[0]), signal.SIGKILL)
    _start_clock(os.environ)
    # A command that a shell starts with `&` inherits SIGINT as ignored, and Python leaves it so; but as
    # SIGINT does, the agent stops a script that does not read the stop flag.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step_signals = os.environ.get(env.STEP_SIGNALS) == "1"
    take_sigterm(step_signals)
    # Where the scheduler calls the script's own handler, the agent does not interrupt it.
    raise_dropped_interrupts(stop_is_asked if step_signals else agent_interrupts)
    set_title(f"dist-train rank={os.environ.get('RANK')} run={os.environ.get(env.RUN_DIR)}")
    # The agent asks for the stacks of a failed group (SIGUSR1) before it kills the group.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    answer_stack_requests()
    # Also for scripts that never import dist_train.
    keep_groups_once_torch_is_imported()
    if env.PROFILE in os.environ:
        from dist_train.agent.workers.step_profiler import profile_steps

        profile_steps(os.environ)
    kind, value, args = argv[1], argv[2], argv[3:]
    code = _run(kind, value, args)
    span_clock().switch(STOPPING if code in (0, ExitCode.PREEMPTED) else IDLE)
    leaving.script_ended(code)
    forget_interrupt()
    sys.exit(code)


def _start_clock(environ: Mapping[str, str]) -> None:
    """Count where the time of this rank goes; rank 0's is the run's."""
    worker, rank = env.WorkerEnv.from_env(environ), int(environ.get("RANK", RANKS_WITH_A_CLOCK))
    if rank >= RANKS_WITH_A_CLOCK or worker is None or worker.run_dir is None:
        return
    path = clock_path(RunDir(worker.run_dir), worker.attempt, rank)
    try:
        start_clock(path)
    except OSError as error:
        if rank == 0:
            text = f"where the time goes is not recorded: {path}: {error.strerror}"
            print(f"[dist-train] {text}", file=sys.stderr)


def _run(kind: str, value: str, args: list[str]) -> int:
    # It stays in sys.modules to the end: exit functions still find its globals.
    module = ModuleType("__main__")
    try:
        bind_to_cpus(os.environ)
        _run_target(module, kind, value, args)
        _check_last_steps()
    except SystemExit as leaving:
        code = _exit_code(leaving)
        if code != 0:
            sys.last_value = leaving
        return code
    except BaseException as error:
        # atexit functions may check whether the script failed, as after an uncaught exception.
        sys.last_value = error
        with _asked_for_stacks_later():
            _report(error)
        code = int(error.exit_code) if isinstance(error, DistTrainError) else 1
        return 130 if isinstance(error, KeyboardInterrupt) else code
    return 0


@contextmanager
def _asked_for_stacks_later() -> Iterator[None]:
    """Hold SIGUSR1 back: the agent kills a rank once its stacks are printed; its own error comes first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def _run_target(module: ModuleType, kind: str, value: str, args: list[str]) -> None:
    try:
        if kind == "script":
            _run_script(module, value, args)
        else:
            _run_module(module, value, args)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def _check_last_steps() -> None:
    """Raise for the last steps that run.check_finite was given, and the last save: no call follows."""
    opened = sys.modules.get("dist_train.distributed.run")
    run = None if opened is None else opened.current()
    if run is not None:
        run.settle()


def _run_module(module: ModuleType, name: str, args: list[str]) -> None:
    sys.argv = [name, *args]
    sys.path.insert(0, os.getcwd())
    if name != _OUR_PROGRAM:
        forget_hidden_modules(Path.cwd())
    # As `python -m` does it; run_module() would drop the module's globals when it returns.
    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin
    sys.modules["__main__"] = module
    runpy._run_code(code, module.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]


def _run_script(module: ModuleType, path: str, args: list[str]) -> None:
    sys.argv = [path, *args]
    if zipfile.is_zipfile(path):
        _run_archive(module, path)
        return
    folder = Path(path).resolve().parent
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(folder))
        forget_hidden_modules(folder)
    loader = SourceFileLoader("__main__", path)
    named = {"__file__": path, "__loader__": loader, "__cached__": None, "__annotations__": {}}
    module.__dict__.update(named, __builtins__=builtins)
    sys.modules["__main__"] = module
    *imports, rest = script_pieces(Path(path).read_bytes(), path)
    for code in imports:
        exec(code, module.__dict__)
        if span_clock().part == SCRIPT:  # not if dt.init was among them
            span_clock().switch(BODY)
    exec(rest, module.__dict__)


def _run_archive(module: ModuleType, path: str) -> None:
    """Run the `__main__` of a zip archive, as the interpreter does where it is given one."""
    sys.path.insert(0, path)
    forget_hidden_modules(Path(path))
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    _, spec, code = runpy._get_main_module_details()  # type: ignore[attr-defined]
    runpy._run_code(code, module.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]


def _exit_code(leaving: SystemExit) -> int:
    """Return the code as the interpreter does: None is 0, an int itself, anything else is printed and 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        cause = leaving.__context__
        if isinstance(cause, DistTrainError) and leaving.code == cause.exit_code:
            _record(cause)
        return _status(leaving.code or 0)
    print(leaving.code, file=sys.stderr)
    return 1


def _status(code: int) -> int:
    """As the interpreter's: -1 for what is no C long, and the lowest byte of it."""
    return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF


def _report(error: BaseException) -> None:
    error.__traceback__ = _without_our_frames(error.__traceback__)
    hint = None if isinstance(error, DistTrainError) else _hint(error)
    _record(error, hint)
    if isinstance(error, DistTrainError) and error.exit_code != DistTrainError.exit_code:
        print(f"error: {error}", file=sys.stderr)
    else:
        _print_traceback(error)
    if hint is not None:
        print(f"[dist-train] hint: {hint}", file=sys.stderr)
    sys.stderr.flush()


def _hint(error: BaseException) -> str | None:
    from dist_train.agent.failures.error_hints import hint_for

    return hint_for_hidden_module(error) or hint_for(error)


def _print_traceback(error: BaseException) -> None:
    # torch's hook puts `[rank0]: ` before each line; the agent prefixes the rank, and folds equal lines.
    if getattr(sys.excepthook, "__module__", "").startswith("torch."):
        traceback.print_exception(error)
    else:
        sys.excepthook(type(error), error, error.__traceback__)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames between the interpreter and the user's first line."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


def _record(error: BaseException, hint: str | None = None) -> None:
    target = os.environ.get(env.ERROR_FILE)
    if not target:
        return
    frame = _user_frame(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    record = {
        # torch's own shape (torch/distributed/elastic/multiprocessing/errors), so its readers work too
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": text, "timestamp": "0"},
        },
        "exception": type(error).__name__,
        "text": str(error),
        "file": frame[0] if frame else None,
        "line": frame[1] if frame else None,
        "traceback": text,
        "hint": hint,
        "source": "dist-train" if isinstance(error, DistTrainError) else "rank",
    }
    try:
        Path(target).write_text(json.dumps(record))
    except OSError as why:
        print(f"dist-train: the error record {target} could not be written: {why}", file=sys.stderr)


def _user_frame(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return the innermost frame in a file of the user's own: not a library's, not ours."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        ours = name.startswith((_OUR_FOLDER, sys.base_prefix, "<")) or "site-packages" in name
        if not ours:
            found = (name, line)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
