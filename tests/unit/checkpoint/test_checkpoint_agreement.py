"""The error of one rank, raised on the others: its class, and with it the exit code, stays."""

from __future__ import annotations

import json

import pytest

from dist_train.checkpoint.agreement import error_from_json, error_to_json
from dist_train.errors import (
    CheckpointError,
    CheckpointWriteError,
    ConfigError,
    DistTrainError,
    UsageError,
)


@pytest.mark.parametrize("kind", [CheckpointError, CheckpointWriteError, ConfigError, UsageError])
def test_an_error_of_ours_keeps_its_class_cause_and_hint(kind: type[DistTrainError]) -> None:
    sent = json.loads(json.dumps(error_to_json(kind("it is full", cause="why", hint="do this"))))
    error = error_from_json(3, sent)
    assert type(error) is kind
    assert isinstance(error, DistTrainError)
    assert (error.what, error.cause, error.hint) == ("on rank 3: it is full", "why", "do this")


def test_an_error_of_the_users_code_is_no_bug_of_ours() -> None:
    error = error_from_json(3, error_to_json(ValueError("my buffer is locked")))
    assert not isinstance(error, DistTrainError), "its exit code, 70, would say so"
    assert str(error) == "on rank 3: ValueError: my buffer is locked"
