"""Load a file, overrides and flags as one typed config, with the origin of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_train.config.layers import FILE, FLAG, Layers, Where, leaves
from dist_train.config.overrides import parse_overrides
from dist_train.config.problems import KeyPath, dotted, raise_problems, shown
from dist_train.config.schema import RunConfig
from dist_train.config.validate import validate
from dist_train.config.yaml_reader import Tree, read_yaml
from dist_train.errors import ConfigError, NotFoundError
from dist_train.near_names import nearest


@dataclass(frozen=True)
class Resolved:
    """A config that was loaded and is valid.

    Args:
        config: the typed config.
        origins: dotted path of every leaf -> "flag --seed", "override", "run.yaml:12" or "default".
        source: the file, as it was named.
    """

    config: RunConfig
    origins: dict[str, str] = field(default_factory=dict)
    source: str = ""


def load_config(
    path: Path | str, overrides: Sequence[str] = (), flags: Mapping[str, tuple[Any, str]] | None = None
) -> Resolved:
    """Read, merge and check: flag over override over file over default.

    Args:
        path: the YAML file.
        overrides: `a.b=c`, the value read as YAML.
        flags: dotted path -> (value, the flag as typed): `{"launch.nodes": (2, "--nodes 2")}`.

    Raises:
        NotFoundError: no such file.
        UsageError: an override of another form, or two that contradict each other.
        ConfigError: lists everything that is wrong with the config.
    """
    return load_text(_read(Path(path)), str(path), overrides, flags)


def load_text(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    flags: Mapping[str, tuple[Any, str]] | None = None,
) -> Resolved:
    """`load_config` for a text; `source` names it in messages."""
    changes, problems = parse_overrides(overrides)
    tree = _document(text, source)
    problems = [*tree.problems, *problems]
    layers = Layers()
    layers.put_all(tree.data, lambda path: _file_place(tree, source, path))
    for change in changes:
        layers.put(change.path, change.value, change.where)
    for name, (value, flag) in (flags or {}).items():
        layers.put(tuple(name.split(".")), value, Where(FLAG, f"flag {flag}", f"flag {flag}"))
    layers.set_aside()
    config, found = validate(layers)
    problems += layers.problems
    unreadable = {problem.path for problem in problems if problem.unreadable}
    problems += [problem for problem in found if problem.path not in unreadable]
    raise_problems(problems, source)
    assert config is not None
    return Resolved(config, _origins(config, layers), source)


def _document(text: str, source: str) -> Tree:
    tree = read_yaml(text, source)
    if tree.data is None and not tree.problems:
        raise ConfigError(f"{source} is empty", hint="start from examples/digits.yaml")
    if not isinstance(tree.data, dict):
        raise_problems(tree.problems, source)
        raise ConfigError(
            f"{source}: a config is a mapping of keys, this is {shown(tree.data)}",
            hint="start from examples/digits.yaml",
        )
    return tree


def _file_place(tree: Tree, source: str, path: KeyPath) -> Where:
    text = f"{source}:{tree.lines.get(path, 1)}"
    return Where(FILE, text, text)


def _origins(config: RunConfig, layers: Layers) -> dict[str, str]:
    return {
        dotted(path): layers.where[path].origin if path in layers.where else "default"
        for path in leaves(config.model_dump())
    }


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise _no_such_file(path) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a config file", hint=_in_folder(path, "")) from None
    except UnicodeDecodeError as error:
        text = f"{path} is not UTF-8 text (byte {error.start})"
        raise ConfigError(text, hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _no_such_file(path: Path) -> NotFoundError:
    folder = path.parent
    if not folder.is_dir():
        return NotFoundError(f"no such file: {path}", cause=f"there is no folder {folder}")
    return NotFoundError(f"no such file: {path}", hint=_in_folder(folder, path.name))


def _in_folder(folder: Path, name: str) -> str:
    files = sorted(file.name for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    close = nearest(name, files)
    if close is not None:
        return f"did you mean {folder / close}?"
    return f"in that folder: {', '.join(files[:12])}" if files else "`dist-train init` writes one"
