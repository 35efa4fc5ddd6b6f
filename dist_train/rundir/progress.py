"""What has been committed, seen without torch: the steps whose manifest is there."""

from __future__ import annotations

from dist_train.rundir.directory import RunDir


def committed_steps(run: RunDir) -> list[int]:
    """Steps with a manifest, ascending. Their content is not verified here; resuming does that."""
    steps = []
    if run.checkpoints.is_dir():
        for folder in run.checkpoints.iterdir():
            number = folder.name.removeprefix("step-")
            if folder.name.startswith("step-") and number.isdigit() and (folder / "manifest.json").exists():
                steps.append(int(number))
    return sorted(steps)


def newest_step(run: RunDir) -> int | None:
    """The newest committed step, or None."""
    steps = committed_steps(run)
    return steps[-1] if steps else None
