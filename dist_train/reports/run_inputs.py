"""What determines the results of a run: its config, data, size, and the versions that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dist_train.reports.config_values import read_config
from dist_train.reports.data_identity import read_data_identity
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

# As dist_train.config.dump has it, which this module does not load: they change no number.
_CHANGES_NOTHING = ("launch", "logging", "name", "resilience")
_NOT_INPUTS = ("schema_version", "time", "config", "target")


def read_inputs(run: RunDir, job: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> value of each; what cannot be read is left out."""
    spec = job.get("spec", {})
    found: dict[str, Any] = {}
    try:
        values = read_config(run)
    except (OSError, ValueError):
        values = ()
    found |= {one.path: one.text for one in values if one.path.partition(".")[0] not in _CHANGES_NOTHING}
    nodes, procs = spec.get("nodes"), spec.get("procs_per_node")
    if isinstance(nodes, int) and isinstance(procs, int):
        found["ranks"] = nodes * procs
    found["device"] = spec.get("device")
    identity = read_data_identity(run)
    if identity is not None:
        found |= {f"data set: {key}": value for key, value in asdict(identity).items()}
    attempts = sorted(int(path.name) for path in run.attempts.glob("*") if path.name.isdigit())
    for attempt in reversed(attempts):
        try:
            record = read_json(run.attempts / str(attempt) / "fingerprint.json")
        except (OSError, ValueError):
            continue
        if record is not None:
            return found | {key: value for key, value in record.items() if key not in _NOT_INPUTS}
    return found
