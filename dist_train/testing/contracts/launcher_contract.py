"""What every launcher must keep; needs no cluster."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dist_train import env
from dist_train.errors import ConfigError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState, Launcher, Plan, Target
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.testing.contracts.plan_words import words_of
from dist_train.testing.contracts.rules import check_options, check_registered

# What must pass unharmed through JSON, YAML and shell scripts.
HOSTILE = {
    "space": "two words",
    "quotes": """it's "quoted" \\ back`tick`""",
    "newline": "first line\nsecond line",
    "shell": "$HOME ${PATH} $(id) ; rm -rf x & # not a comment",
    "unicode": "Größe 値",
    "yaml": "- {a: *b} %c: !d",
}
# How a node learns its number where the launcher cannot write it for each.
_NODE_FROM_CLUSTER = ("SLURM_NODEID", "srun", "JOB_COMPLETION_INDEX", "Indexed", "batch.volcano.sh")
_PHASES = {"pending", "running", "requeued", "done", "failed", "stopped", "unknown"}


def check_launcher(launcher: Launcher) -> None:
    """Raise AssertionError for the first rule of launchers that this one breaks."""
    name = check_registered("launchers", launcher)
    assert isinstance(launcher, Launcher), f"{name} is not a subclass of dist_train.jobs.Launcher"
    check_options(launcher)
    options = example_options(launcher)
    check_plan_is_pure(launcher, options)
    check_hostile_texts(launcher, options)
    check_seam(launcher, options)
    check_fresh_interpreter(launcher, options)
    check_unknown_run(launcher)
    check_cancel(launcher)


def example_options(launcher: Launcher) -> BaseModel:
    """The defaults; or `example`, where a launcher cannot plan without an answer (an image, say)."""
    return launcher.Options() if launcher.example is None else launcher.example


def example_spec(run_dir: Path, **changes: Any) -> JobSpec:
    """A job with every field that a launcher may render."""
    target = Target("script", str(run_dir.parent / "train.py"), ("--lr", "0.1"), str(run_dir.parent))
    spec = JobSpec("contract", "contract-1", run_dir, target, nodes=2, procs_per_node=2, interface="lo")
    return replace(spec, env=(("GREETING", "hello"),), time_limit_s=600, **changes)


def check_plan_is_pure(launcher: Launcher, options: BaseModel) -> None:
    """Same spec, same bytes: whatever the environment and the folder are; and no file is made."""
    with _empty_folder() as folder:
        spec = example_spec(folder / "runs" / "contract-1")
        first = launcher.plan(spec, options)
        with _another_world(folder / "elsewhere"):
            second = launcher.plan(spec, options)
        made = [path.relative_to(folder) for path in folder.rglob("*")]
        assert isinstance(first, Plan), f"plan gave {type(first).__name__}, not Plan"
        assert first.launcher == launcher.name, f"the plan says launcher {first.launcher!r}"
        assert first.files, "the plan has no file: nothing would be submitted"
        assert first == second, (
            f"the plan depends on the environment or the folder: {_difference(first, second)}"
        )
        assert made == [Path("elsewhere")], f"plan made files: {made}"
        other = launcher.plan(replace(spec, run_id="contract-2"), options)
        assert other.files != first.files, "the plan does not depend on the run id"


def check_hostile_texts(launcher: Launcher, options: BaseModel) -> None:
    """Spaces, quotes, newlines and shell characters come through as they are.

    In arguments and variables always; a path may be refused instead, with a ConfigError: no
    scheduler's script can hold every one.
    """
    for kind, text in HOSTILE.items():
        with _empty_folder() as folder:
            tame = example_spec(folder / "run")
            target = replace(tame.target, args=(text, f"--name={text}"))
            spec = replace(tame, target=target, env=(("GREETING", text),))
            found = words_of(launcher.plan(spec, options), spec)
            for word in target.args:
                assert found.has(word), f"{kind}: the argument {word!r} does not come through the plan"
            said = f"{kind}: --env GREETING={text!r} does not come through the plan"
            assert found.has_pair("GREETING", text), said
            _check_hostile_path(launcher, options, folder / text.replace("/", "_"), kind)


def _check_hostile_path(launcher: Launcher, options: BaseModel, run_dir: Path, kind: str) -> None:
    spec = example_spec(run_dir)
    spec = replace(spec, target=replace(spec.target, value=str(run_dir / "train.py"), folder=str(run_dir)))
    try:
        found = words_of(launcher.plan(spec, options), spec)
    except ConfigError:
        return
    # A launcher whose nodes do not see this machine's directories says where the run is there.
    inside = launcher.run_dir_on_nodes(spec) or spec.run_dir
    said = f"{kind}: the run directory {inside} does not come through the plan"
    assert found.has_pair(env.RUN_DIR, str(inside)), said
    assert found.has(spec.target.value), f"{kind}: the target {spec.target.value!r} does not come through"


def check_seam(launcher: Launcher, options: BaseModel) -> None:
    """Every variable of the launcher -> agent list stands in the plan."""
    with _empty_folder() as folder:
        plan = launcher.plan(example_spec(folder / "run"), options)
    text = "\n".join(content.decode(errors="replace") for _, content in plan.files)
    asked = [env.RUN_ID, env.RUN_DIR, env.LAUNCHER, env.NNODES, env.NPROC_PER_NODE, env.RDZV, env.INTERFACE]
    missing = [name for name in (*asked, env.GRACE_S, env.MAX_RESTARTS) if name not in text]
    if not any(name in text for name in (env.NODE_RANK, *_NODE_FROM_CLUSTER)):
        missing.append(env.NODE_RANK)
    assert not missing, f"the plan does not set {', '.join(missing)}"
    assert "dist_train.agent" in text, "the plan does not start dist_train.agent"


_FRESH = """
import sys
from pathlib import Path
from dist_train import registry
from dist_train.testing.contracts.launcher_contract import digest, example_options, example_spec
launcher = registry.load("launchers", sys.argv[1])
print(digest(launcher.plan(example_spec(Path("/nowhere/run")), example_options(launcher))))
sys.exit("torch was loaded" if "torch" in sys.modules else 0)
"""


def check_fresh_interpreter(launcher: Launcher, options: BaseModel) -> None:
    """Another interpreter, with another order of sets, plans the same bytes, and loads no torch for it."""
    words = [sys.executable, "-P", "-c", _FRESH, launcher.name]
    environ = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{launcher.name} in a fresh interpreter: {done.stderr.strip()}"
    here = digest(launcher.plan(example_spec(Path("/nowhere/run")), options))
    assert done.stdout.strip() == here, "another interpreter plans other bytes for the same job"


def digest(plan: Plan) -> str:
    """One number for all of a plan's bytes."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()


def check_unknown_run(launcher: Launcher) -> None:
    """A run of which nothing is known is `unknown`, not an error."""
    with _run_folder() as run:
        state = launcher.state(JobHandle(f"{launcher.name}:999999999"), str(run.path))
        assert isinstance(state, JobState), f"state gave {type(state).__name__}, not JobState"
        assert state.phase == "unknown", f"the state of a run that nobody knows is {state.phase!r}"
        assert state.source, "the state does not say who answered"


def check_cancel(launcher: Launcher) -> None:
    """Cancelling twice, an unknown run or one that has ended, changes nothing and is no error."""
    handle = JobHandle(f"{launcher.name}:999999999")
    with _run_folder() as run:
        _twice(lambda: launcher.cancel(handle, str(run.path)), "a run that nobody knows")
    with _run_folder() as run:
        append_event(run, "finished", attempt=0, exit_code=0)
        before = launcher.state(handle, str(run.path))
        assert before.phase in _PHASES, f"{before.phase!r} is not a phase"
        _twice(lambda: launcher.cancel(handle, str(run.path)), "a run that has ended")
        after = launcher.state(handle, str(run.path))
        assert after == before, f"cancel changed a run that had ended: {before} is now {after}"


def _twice(cancel: Callable[[], None], what: str) -> None:
    ends = []
    for _ in range(2):
        try:
            cancel()
            ends.append("done")
        except UnavailableError:
            ends.append("unavailable")  # no cluster here: the error has a hint
        except Exception as error:
            raise AssertionError(f"cancel of {what} raised {type(error).__name__}: {error}") from error
    assert ends[0] == ends[1], f"cancel of {what} is not idempotent: {ends}"


@contextmanager
def _empty_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="contract-") as folder:
        yield Path(folder).resolve()


@contextmanager
def _run_folder() -> Iterator[RunDir]:
    with _empty_folder() as folder:
        run = RunDir(folder / "run")
        run.create()
        yield run


@contextmanager
def _another_world(folder: Path) -> Iterator[None]:
    """Another working directory, another user, home and node."""
    before, environ = Path.cwd(), dict(os.environ)
    folder.mkdir()
    changed = {
        "HOME": str(folder),
        "USER": "somebody",
        "LOGNAME": "somebody",
        "PWD": str(folder),
        "LANG": "C",
    }
    changed |= {"SLURM_JOB_ID": "4711", "SLURM_NODEID": "1", "OMP_NUM_THREADS": "7", env.RUN_ID: "another"}
    changed |= {"CUDA_VISIBLE_DEVICES": "5", "KUBECONFIG": "/nowhere", "TMPDIR": str(folder)}
    try:
        os.chdir(folder)
        os.environ.update(changed)
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environ)


def _difference(first: Plan, second: Plan) -> str:
    theirs = dict(second.files)
    for name, content in first.files:
        if theirs.get(name) != content:
            return f"{name} differs"
    return "the summary or the list of files differs"
