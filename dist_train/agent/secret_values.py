"""The values of --secret, where the nodes do not inherit them from the launcher: a 0600 file."""

from __future__ import annotations

import json

from dist_train.errors import ConfigError
from dist_train.rundir import RunDir


def read_secrets(run: RunDir) -> dict[str, str]:
    """Names and values for the ranks' environment alone; raises ConfigError for an unreadable file."""
    try:
        record = json.loads(run.secrets.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{run.secrets} cannot be read: {error}", mend=f"dist-train resume {run.path} writes it anew"
        ) from None
    return {str(name): str(value) for name, value in record.items()}
