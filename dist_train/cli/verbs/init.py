"""`dist-train init`: a config and a model that run as they are, to be changed into one's own."""

from __future__ import annotations

import json
import os
import shlex
from importlib.resources import files
from pathlib import Path

import click

from dist_train.cli.options.shell_complete import folders
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS
from dist_train.errors import ConfigError, ExitCode

# Name in the folder -> name below cli/starter. (A file that ends in .py there would be a module of ours.)
_FILES = {"train.yaml": "train.yaml", "model.py": "model.py.template"}
_SCHEMA = "train.schema.json"
_WHAT = {
    "train.yaml": "what is trained, on what, for how long",
    "model.py": "the model and its data: yours go here",
    _SCHEMA: "lets an editor complete and check train.yaml",
}


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples("dist-train init my_project && cd my_project && dist-train launch train.yaml"),
)
@click.argument(
    "folder", default=".", metavar="[DIR]", type=click.Path(path_type=Path), shell_complete=folders
)
def init(folder: Path) -> int:
    """Write train.yaml, model.py and the editor's schema into DIR (default: here); they run unchanged.

    Overwrites nothing: where one of the three is there already, none is written.
    """
    contents = {name: _starter(name) for name in _FILES} | {_SCHEMA: _schema()}
    _refuse_existing(folder, list(contents))
    _write_all(folder, contents)
    for name in contents:
        click.echo(f"  {name:<18} {_WHAT[name]}")
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"\nnext: {where}dist-train launch train.yaml")
    return int(ExitCode.OK)


def _starter(name: str) -> str:
    return files("dist_train.cli").joinpath("starter", _FILES[name]).read_text(encoding="utf-8")


def _schema() -> str:
    from dist_train.config import json_schema

    return json.dumps(json_schema(), indent=2) + "\n"


def _refuse_existing(folder: Path, names: list[str]) -> None:
    there = [str(folder / name) for name in names if os.path.lexists(folder / name)]
    if there:
        raise ConfigError(
            f"{', '.join(there)} exist{'s' if len(there) == 1 else ''}",
            cause="init overwrites nothing",
            hint="dist-train init ANOTHER-FOLDER",
        )


def _write_all(folder: Path, contents: dict[str, str]) -> None:
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {os.strerror(error.errno or 0)}",
            hint="dist-train init ANOTHER-FOLDER",
        ) from error


COMMAND = init
