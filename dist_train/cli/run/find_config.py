"""The config that an argument means: a file, the bundled example, or a run's own."""

from __future__ import annotations

from pathlib import Path

import click

from dist_train.cli.run.bundled_example import bundled_example, stands_for_bundled
from dist_train.cli.run.find_run import find_run, read_job
from dist_train.errors import NotFoundError
from dist_train.rundir import RunDir

_YAML = (".yaml", ".yml")


def find_config(source: str) -> Path:
    """CONFIG.yaml, or the resolved config that a run keeps; raises NotFoundError for a run without one."""
    if stands_for_bundled(source):
        click.echo(f"[dist-train] no {source} here: taking the one that comes with dist-train", err=True)
        return bundled_example()
    if source.endswith(_YAML) or Path(source).is_file():
        return Path(source)
    run = find_run(source)
    if not run.config.exists():
        raise NotFoundError(
            f"{source} has no config.yaml", cause="it runs a script or a module, which has no config of ours"
        )
    here = Path.cwd()
    return run.config.relative_to(here) if run.config.is_relative_to(here) else run.config


def import_folder(config: Path) -> Path:
    """The folder from which a config's components are imported: of a run's config, that of the original."""
    run = RunDir(config.absolute().parent)
    if config.name == run.config.name and run.is_run:
        return Path(read_job(run).get("spec", {}).get("target", {}).get("folder") or run.path)
    return run.path
