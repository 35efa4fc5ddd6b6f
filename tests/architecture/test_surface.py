"""The public surface, frozen: names and records that users depend on. A change shows up in a diff.

After an intended change: DIST_TRAIN_WRITE_SURFACE=1 pytest tests/architecture/test_surface.py rewrites the
files (and fails, so that no CI run can pass by writing).
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
WRITE = "DIST_TRAIN_WRITE_SURFACE"


def parameters(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults; types may become wider without breaking users."""
    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in ("self", "cls")]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in kept]
    return str(inspect.Signature(bare))


def public(owner: type) -> dict[str, Any]:
    """A class: its constructor, and each public method and property."""
    found: dict[str, Any] = {"__init__": parameters(owner)}
    for name in sorted({name for one in _ours(owner) for name in vars(one)}):
        value = inspect.getattr_static(owner, name)
        if name.startswith("_") and name not in ("__len__", "__getitem__", "__iter__", "__enter__"):
            continue
        if isinstance(value, property):
            found[name] = "property"
        elif callable(value) or isinstance(value, (classmethod, staticmethod)):
            found[name] = parameters(getattr(owner, name))
    return found


def _ours(owner: type) -> list[type]:
    """The class, and the bases that it has from this package: what is inherited is as public."""
    return [one for one in owner.__mro__ if one.__module__.startswith("dist_train.")]


def methods(owner: type) -> dict[str, Any]:
    """A class that users do not construct."""
    return {name: value for name, value in public(owner).items() if name != "__init__"}


def fields(owner: type) -> str:
    """A record's fields, in order."""
    return " ".join(field.name for field in dataclasses.fields(owner))


def python_surface() -> dict[str, Any]:
    """What a user's program imports."""
    import dist_train as dt
    from dist_train.checkpoint.save_results import Committed, Restored
    from dist_train.data.exact_loader import ExactLoader
    from dist_train.env import RankInfo
    from dist_train.trainer.callback import Callback, CallbackContext, CallbackRun
    from dist_train.trainer.task import LossOutput, Task

    return {
        "dist_train.__all__": " ".join(sorted(dt.__all__)),
        "packages": " ".join(sorted(set(dir(dt)) & dt._PACKAGES)),
        "init": parameters(dt.init),
        "prepare": parameters(dt.prepare),
        "loader": parameters(dt.loader),
        "to_device": parameters(dt.to_device),
        "unwrap": parameters(dt.unwrap),
        "Predictor": public(dt.Predictor),
        "Run": methods(dt.Run),
        "checkpoint.CheckpointManager": public(dt.checkpoint.CheckpointManager),
        "checkpoint.CheckpointStorage": public(dt.checkpoint.CheckpointStorage),
        "checkpoint.Committed": fields(Committed),
        "checkpoint.Restored": fields(Restored),
        "checkpoint.load_model": parameters(dt.checkpoint.load_model),
        "checkpoint.save_model": parameters(dt.checkpoint.save_model),
        "data.DistributedSampler": public(dt.data.DistributedSampler),
        "data.ExactLoader": public(ExactLoader),
        "data.PERMUTATION_VERSION": dt.data.PERMUTATION_VERSION,
        "data.Permutation": public(dt.data.Permutation),
        "env.RankInfo": fields(RankInfo),
        "env.RankInfo.from_env": parameters(RankInfo.from_env),
        "trainer.Callback": methods(Callback),
        "trainer.CallbackContext": fields(CallbackContext),
        "trainer.CallbackContext.run": fields(CallbackRun),
        "trainer.LossOutput": fields(LossOutput),
        "trainer.Task": methods(Task),
    }


def command_surface() -> dict[str, Any]:
    """The commands, their options, and the exit codes."""
    from dist_train.cli.launch.launch_options import LaunchCommand, option_groups
    from dist_train.cli.main import VERBS, cli
    from dist_train.errors import ExitCode

    groups = {
        group.title: {
            str(option.name): " ".join([*option.opts, *option.secondary_opts]) for option in group.options
        }
        for group in option_groups()
        if group.launchers is None  # an adapter's own options may change without an edit here
    }
    verbs: dict[str, Any] = {}
    for verb in VERBS:
        command = cli.get_command(None, verb)  # type: ignore[arg-type]
        verbs[verb] = (
            options_of_groups(command) if isinstance(command, LaunchCommand) else options_of(command)
        )
    verbs["launch"] = "see launch"
    return {
        "verbs": verbs,
        "launch": groups,
        "exit codes": {code.name: int(code) for code in ExitCode},
    }


def options_of_groups(command: Any) -> str:
    """The options of a verb that has those of launch, less an adapter's own."""
    common = [option for group in command.groups if group.launchers is None for option in group.options]
    return " ".join(flag for option in common for flag in option.opts if flag.startswith("-"))


def options_of(command: Any) -> Any:
    """A verb's options, or those of each of its verbs."""
    nested = getattr(command, "commands", None)
    if nested:
        return {name: options_of(inner) for name, inner in sorted(nested.items())}
    return " ".join(flag for parameter in command.params for flag in parameter.opts if flag.startswith("-"))


def records_surface() -> dict[str, Any]:
    """The files of a run directory and their fields; the environment variables."""
    from dist_train import env
    from dist_train.rundir import RunDir
    from dist_train.rundir.events import EventKind
    from dist_train.rundir.failure import Failure, FailureClass
    from dist_train.rundir.result import Result

    run = RunDir(Path("/"))
    paths = {
        name: str(value.relative_to("/"))
        for name, kind in vars(RunDir).items()
        if isinstance(kind, property) and isinstance(value := getattr(run, name), Path)
    }
    return {
        "run directory": paths,
        "logs of attempt 1": str(run.attempt_logs(1).relative_to("/")),
        "events": " ".join(sorted(typing.get_args(EventKind))),
        "failure.json": " ".join(sorted(Failure(source="rank", cls="signal").to_record())),
        "failure classes": " ".join(sorted(typing.get_args(FailureClass))),
        "result.json": fields(Result),
        "variables": " ".join(sorted(v for v in vars(env).values() if str(v).startswith("DIST_TRAIN_"))),
        "torchrun's variables": " ".join(sorted(env.TORCHRUN_NAMES)),
    }


@pytest.mark.parametrize("surface", [python_surface, command_surface, records_surface])
def test_the_surface_is_unchanged(surface: Callable[[], dict[str, Any]]) -> None:
    path = FOLDER / f"{surface.__name__}.json"
    now = json.dumps(surface(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get(WRITE):
        path.write_text(now, encoding="utf-8")
        pytest.fail(f"{path.name} was written: review its diff, then run without {WRITE}")
    frozen = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(frozen.splitlines(), now.splitlines(), "frozen", "now", lineterm="", n=2)
    assert now == frozen, f"{path.name} (intended? {WRITE}=1 rewrites it)\n" + "\n".join(lines)


def test_the_main_promises_hold() -> None:
    """Stated here too, so that rewriting the files does not change them unnoticed."""
    names = python_surface()
    assert names["init"].startswith("(seed=None, timeout_s=600.0")
    assert names["prepare"] == "(model, strategy='ddp', *, mesh=None, **options)"
    assert names["unwrap"] == "(model)"
    assert names["loader"].startswith("(dataset, ")
    assert "batch_size=None, shuffle=True" in names["loader"].replace("*, ", "")
    manager = names["checkpoint.CheckpointManager"]
    assert manager["__init__"].startswith("(directory, *, keep_last=3, every_steps=None, ")
    assert manager["save"].startswith("(step, state, *, ")
    assert manager["load_latest"].startswith("(state, *, init_from=None")
    assert manager["verify"] == "(step)"
    assert manager["save_if_due"].startswith("(step, state")
    sampler = "(dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False)"
    assert names["data.DistributedSampler"]["__init__"] == sampler
    assert names["data.Permutation"]["__init__"].startswith("(n, seed=0, epoch=0")
    facts = "rank local_rank node_rank world_size local_world_size num_nodes master_addr master_port source"
    assert names["env.RankInfo"].startswith(facts)
    codes = command_surface()["exit codes"]
    assert sorted(codes.values()) == [0, 1, 2, 66, 69, 70, 73, 74, 75, 76, 77, 78, 79, 130]
