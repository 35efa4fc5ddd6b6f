"""Names and labels: valid for every run name, deterministic, unique."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_stand_ins import Job

from dist_train.jobs import JobSpec, Target
from launchers._kubernetes.manifest.names import NAME_LABEL, RUN_LABEL, labels, object_name

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
SERVICE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
# As the command line lets them through.
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def called(name: str, run_id: str = "x") -> JobSpec:
    return JobSpec(name, run_id, Path("/runs/x"), Target("script", "/x.py"))


@pytest.mark.parametrize("name", ["digits-1", "a", "a--b", "x" * 40])
def test_a_valid_name_is_kept(name: str) -> None:
    assert object_name(called(name)) == name


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("Digits-1", "digits-1-"),
        ("my_run.v2", "my-run-v2-"),
        ("3d-unet", "run-3d-unet-"),
        ("x" * 41, "x" * 33 + "-"),
        ("a-", "a-"),
        ("a" * 32 + "-b-c-d-e-f-g", "a" * 32 + "-"),
    ],
)
def test_another_name_is_changed_and_has_a_hash(name: str, begins: str) -> None:
    found = object_name(called(name))
    assert re.fullmatch(re.escape(begins) + "[0-9a-f]{6}", found)
    assert len(found) <= 40


def test_names_that_would_become_the_same_do_not() -> None:
    alike = ["a_b", "a.b", "A-b", "a-b", "x" * 50, "x" * 51]
    assert len({object_name(called(name)) for name in alike}) == len(alike)


@given(names, names)
def test_every_name_is_valid_and_unique(one: str, other: str) -> None:
    found = object_name(called(one))
    assert SERVICE_NAME.fullmatch(found)
    assert found == object_name(called(one)), "and the same at every call"
    assert (found == object_name(called(other))) == (one == other)


def test_labels_of_a_run(job: Job) -> None:
    assert labels(job()) == {
        "dist-train/run-id": "digits-1f",
        "dist-train/name": "digits",
        "app.kubernetes.io/name": "dist-train",
        "app.kubernetes.io/managed-by": "dist-train",
    }


@given(st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=120))
def test_every_run_id_has_a_valid_unique_label(one: str, other: str) -> None:
    label = labels(called("x", one))[RUN_LABEL]
    assert LABEL_VALUE.fullmatch(label)
    assert (label == labels(called("x", other))[RUN_LABEL]) == (one == other)


@given(names)
def test_every_name_has_a_valid_label(name: str) -> None:
    assert LABEL_VALUE.fullmatch(labels(called(name))[NAME_LABEL])


def test_long_run_ids_differ_in_their_labels() -> None:
    assert len({labels(called("x", "r" * 100 + tail))[RUN_LABEL] for tail in "abc"}) == 3
