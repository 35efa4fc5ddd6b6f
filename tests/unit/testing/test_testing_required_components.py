"""Whether a test with a missing component fails or is skipped."""

from __future__ import annotations

import pytest

from dist_train.testing.required_components import allowed_skips, when_missing


@pytest.mark.parametrize(
    ("environ", "installable", "outcome"),
    [
        ({}, False, "skip"),
        ({}, True, "fail"),
        ({"CI": "true"}, False, "fail"),
        ({"CI": "false"}, False, "skip"),
        ({"CI": "true", "DIST_TRAIN_ALLOW_SKIP": "slurm"}, True, "allowed"),
        ({"CI": "true", "DIST_TRAIN_ALLOW_SKIP": "kubernetes"}, True, "fail"),
    ],
)
def test_missing_slurm(environ: dict[str, str], installable: bool, outcome: str) -> None:
    assert when_missing("slurm", environ, installable=installable) == outcome


def test_the_list_takes_commas_and_spaces() -> None:
    assert allowed_skips({"DIST_TRAIN_ALLOW_SKIP": " slurm, kubernetes,"}) == {"slurm", "kubernetes"}
