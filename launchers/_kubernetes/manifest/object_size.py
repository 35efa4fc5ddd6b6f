"""Whether etcd can keep what was rendered: checked before anything is submitted or waits in a queue."""

from __future__ import annotations

import json
from typing import Any

from dist_train.errors import ConfigError

# etcd's --max-request-bytes, less what the API server and the controllers add (status, managedFields).
_OBJECT_BYTES = 1_572_864 - 131_072


def check_object_sizes(rendered: list[dict[str, Any]]) -> None:
    """Raise ConfigError for an object that etcd refuses."""
    for body in rendered:
        size = len(json.dumps(body, ensure_ascii=False).encode())
        if size > _OBJECT_BYTES:
            raise ConfigError(
                f"the {body['kind']} {body['metadata']['name']} has {size} bytes; "
                f"the cluster keeps {_OBJECT_BYTES}",
                cause="etcd takes 1.5 MiB for an object, and a part of it is the API server's",
                hint="put long arguments, variables and parts of --pod-patch into files of the image",
            )
