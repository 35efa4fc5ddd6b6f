"""The lines of --setup are read by bash before anything is submitted."""

from __future__ import annotations

import pytest
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from launchers._slurm.slurm_options import Options
from launchers.slurm import SlurmLauncher


@pytest.mark.parametrize(
    "lines",
    [
        ('module load "cuda',),
        ("module load cuda", "echo 'it"),
        ("if true; then", "echo yes"),
        ("files=(a b",),
        ("cat <<END", "text"),
        ("echo a\nfi\nb",),
    ],
)
def test_what_would_swallow_the_rest_of_the_script_is_refused(job: Job, lines: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"--setup .* is no shell that ends"):
        SlurmLauncher().plan(job(), Options(setup=lines))


@pytest.mark.parametrize(
    "lines",
    [
        ("module load cuda", "export A='two words'"),
        ("if true; then", "echo yes", "fi"),
        ("shopt -s extglob", "ls !(a|b)"),
        ("cat <<END", "it's", "END"),
        ("# it's a comment",),
    ],
)
def test_whole_lines_are_taken(job: Job, lines: tuple[str, ...]) -> None:
    assert SlurmLauncher().plan(job(), Options(setup=lines)).files


def test_the_line_that_bash_names_is_named(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"--setup 'b\)'"):
        SlurmLauncher().plan(job(), Options(setup=("a", "b)", "c")))


def test_without_bash_nothing_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert SlurmLauncher().plan(job(), Options(setup=("echo 'it",)))
