"""The first code of every rank: ties it to its agent, runs the user's target, records its error.

    python -u -P -m dist_train.agent.boot AGENT_PID KIND VALUE [ARGS...]

The user's script needs no decorator: an exception is written to TORCHELASTIC_ERROR_FILE before its
traceback is printed. `__main__` stays alive to the end and the process leaves by os._exit after
atexit and flush: a DDP object that is freed after destroy_process_group() can deadlock in gloo's
destructor (it joins its threads while it holds the GIL).
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from dist_train import env
from dist_train.agent.title import set_title
from dist_train.errors import DistTrainError
from dist_train.jobs.parent import end_with_parent

_OUR_FOLDER = str(Path(__file__).resolve().parent.parent)


def main(argv: list[str]) -> None:
    """Run one rank; does not return."""
    end_with_parent(int(argv[0]), signal.SIGKILL)
    # Whatever a shell begins by `&` inherits SIGINT as ignored, and Python then leaves it so; but it is how
    # the agent stops a script that does not read the flag.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_title(f"dist-train rank={os.environ.get('RANK')} run={os.environ.get(env.RUN_DIR)}")
    # The agent asks for the stacks of a failed group before it ends it.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    kind, value, args = argv[1], argv[2], argv[3:]
    code, keep_alive = _run(kind, value, args)
    _leave(code, keep_alive)


def _run(kind: str, value: str, args: list[str]) -> tuple[int, Any]:
    module = ModuleType("__main__")
    try:
        if kind == "script":
            _run_script(module, value, args)
        else:
            sys.argv = [value, *args]
            sys.path.insert(0, os.getcwd())
            return 0, runpy.run_module(value, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        if code != 0:
            sys.last_value = leaving
        return code, module
    except BaseException as error:
        # What runs at exit may ask whether the script failed, as after an uncaught exception.
        sys.last_value = error
        _report(error)
        code = int(error.exit_code) if isinstance(error, DistTrainError) else 1
        return 130 if isinstance(error, KeyboardInterrupt) else code, (module, error)
    return 0, module


def _run_script(module: ModuleType, path: str, args: list[str]) -> None:
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    module.__file__ = path
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _exit_code(leaving: SystemExit) -> int:
    """As the interpreter does it: None is 0, an int is itself, anything else is printed and is 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        cause = leaving.__context__
        if isinstance(cause, DistTrainError) and leaving.code == cause.exit_code:
            _record(cause)
        return int(leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    error.__traceback__ = _without_our_frames(error.__traceback__)
    mend = None if isinstance(error, DistTrainError) else _mend(error)
    _record(error, mend)
    if isinstance(error, DistTrainError) and error.exit_code != DistTrainError.exit_code:
        print(f"error: {error}", file=sys.stderr)
    else:
        _print_traceback(error)
    if mend is not None:
        print(f"[dist-train] mend: {mend}", file=sys.stderr)
    sys.stderr.flush()


def _mend(error: BaseException) -> str | None:
    from dist_train.agent.mends import mend_of

    return mend_of(error)


def _print_traceback(error: BaseException) -> None:
    # torch's hook puts `[rank0]: ` before each line; the agent says the rank, and folds equal lines.
    if getattr(sys.excepthook, "__module__", "").startswith("torch."):
        traceback.print_exception(error)
    else:
        sys.excepthook(type(error), error, error.__traceback__)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Drop what lies between the interpreter and the user's first line."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


def _record(error: BaseException, mend: str | None = None) -> None:
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
        "mend": mend,
        "source": "dist-train" if isinstance(error, DistTrainError) else "rank",
    }
    try:
        Path(target).write_text(json.dumps(record))
    except OSError as why:
        print(f"dist-train: the error record {target} could not be written: {why}", file=sys.stderr)


def _user_frame(trace: TracebackType | None) -> tuple[str, int] | None:
    """The innermost frame in a file of the user's own: not a library's, not ours."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        ours = name.startswith((_OUR_FOLDER, sys.base_prefix, "<")) or "site-packages" in name
        if not ours:
            found = (name, line)
    return found


def _leave(code: int, keep_alive: Any) -> None:
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: joins non-daemon threads
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    del keep_alive
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
