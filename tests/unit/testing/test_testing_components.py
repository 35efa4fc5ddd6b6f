"""When a test may be left out."""

from __future__ import annotations

import pytest

from dist_train.testing.components import allowed_skips, when_missing


@pytest.mark.parametrize(
    ("environ", "installable", "verdict"),
    [
        ({}, False, "skip"),
        ({}, True, "fail"),
        ({"CI": "true"}, False, "fail"),
        ({"CI": "false"}, False, "skip"),
        ({"CI": "true", "DIST_TRAIN_ALLOW_SKIP": "slurm"}, True, "allowed"),
        ({"CI": "true", "DIST_TRAIN_ALLOW_SKIP": "kubernetes"}, True, "fail"),
    ],
)
def test_missing_slurm(environ: dict[str, str], installable: bool, verdict: str) -> None:
    assert when_missing("slurm", environ, installable=installable) == verdict


def test_the_list_takes_commas_and_spaces() -> None:
    assert allowed_skips({"DIST_TRAIN_ALLOW_SKIP": " slurm, kubernetes,"}) == {"slurm", "kubernetes"}
