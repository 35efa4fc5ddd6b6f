"""What every rank will run: TARGET as it was typed, the default, or the bundled example."""

from __future__ import annotations

import re
from pathlib import Path

from dist_train.cli.launch.arguments import YAML_SUFFIXES, LaunchArguments
from dist_train.cli.run.bundled_example import bundled_example, stands_for_bundled
from dist_train.errors import NotFoundError, UsageError
from dist_train.jobs.spec import Target
from dist_train.near_names import nearest

# Options that people also pass after a script, where they are the script's.
_OFTEN_MISPLACED = frozenset(
    {
        *("--nodes", "-N", "--gpus-per-node", "--nproc-per-node", "--launcher", "--max-restarts"),
        *("--dry-run", "--name", "--run-dir", "--device", "--time", "--detach", "--init-method"),
    }
)


def find_target(arguments: LaunchArguments) -> tuple[Target, tuple[str, ...]]:
    """The target, and notices on how it was chosen; raise NotFoundError (66) for a file that is missing."""
    if arguments.module is not None:
        target = Target("module", arguments.module, arguments.args, str(Path.cwd()))
        return target, _misplaced_options(arguments)
    if arguments.target is None:
        return _default_target(arguments)
    if stands_for_bundled(arguments.target):
        return _bundled(f"no {arguments.target} here: taking the one that comes with dist-train")
    path = Path(arguments.target)
    if arguments.target.endswith(YAML_SUFFIXES):
        return _config(path), ()
    if not path.is_file():
        raise _no_such_target(path)
    target = Target("script", str(path.absolute()), arguments.args, str(path.absolute().parent))
    return target, _misplaced_options(arguments)


def name_of(target: Target) -> str:
    """A run's default name: the stem of its file, the last part of its module."""
    name = target.value.rpartition(".")[2] if target.kind == "module" else Path(target.value).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def _default_target(arguments: LaunchArguments) -> tuple[Target, tuple[str, ...]]:
    here = Path("dist-train.yaml")
    if here.is_file():
        return _config(here), ()
    if arguments.options.get("launcher", "local") != "local":
        raise UsageError("no TARGET", hint="dist-train launch CONFIG.yaml, or SCRIPT.py, or -m MODULE")
    return _bundled("no TARGET and no ./dist-train.yaml: training the bundled digits example")


def _config(path: Path) -> Target:
    return Target("config", str(path.absolute()), (), str(path.absolute().parent))


def _bundled(why: str) -> tuple[Target, tuple[str, ...]]:
    path = bundled_example()
    return _config(path), (f"{why} ({path})",)


def _no_such_target(path: Path) -> NotFoundError:
    folder = path.parent if path.parent.is_dir() else Path()
    names = [file.name for file in folder.iterdir() if file.suffix in (".py", *YAML_SUFFIXES)]
    near = nearest(path.name, names)
    return NotFoundError(
        f"no such file: {path}",
        cause="TARGET is CONFIG.yaml, SCRIPT.py or -m MODULE",
        hint=f"did you mean {folder / near}?" if near else None,
    )


def _misplaced_options(arguments: LaunchArguments) -> tuple[str, ...]:
    """A notice where an argument of the script looks like an option of ours: the script gets it."""
    found = [word for word in arguments.args if word.partition("=")[0].replace("_", "-") in _OFTEN_MISPLACED]
    if not found:
        return ()
    target = arguments.module or arguments.target
    return (f"{found[0]} stands after {target} and goes to it; options of dist-train stand before",)
