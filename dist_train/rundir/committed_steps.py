"""List the committed checkpoints of a run without torch: the steps that have a manifest."""

from __future__ import annotations

from dist_train.rundir.directory import RunDir
from dist_train.rundir.remote_checkpoints import read_remote
from dist_train.rundir.step_names import parse_step


def committed_steps(run: RunDir) -> list[int]:
    """Steps with a manifest, ascending. Their content is not verified here; a resume does that.

    Of checkpoints at a URL: those that rank 0 saw there last.
    """
    remote = read_remote(run)
    if remote is not None:
        return list(remote.steps)
    steps = []
    if run.checkpoints.is_dir():
        for folder in run.checkpoints.iterdir():
            step = parse_step(folder.name)
            if step is not None and (folder / "manifest.json").exists():
                steps.append(step)
    return sorted(steps)


def newest_step(run: RunDir) -> int | None:
    """The newest committed step, or None."""
    steps = committed_steps(run)
    return steps[-1] if steps else None
