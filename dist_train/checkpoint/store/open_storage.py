"""Find the storage of a path or URL: directories are ours, other schemes are registered by plug-ins."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from dist_train import registry
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import ConfigError

KIND = "checkpoint_storages"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

Location = str | Path | CheckpointStorage


def open_storage(location: Location, *, absolute: bool = False) -> CheckpointStorage:
    """Return the storage at a location; nothing is created or read.

    Args:
        location: a directory, a URL with a registered scheme, or a storage.
        absolute: whether a relative directory stays the same when the working directory changes.

    Raises:
        ConfigError: nothing is registered for the URL's scheme, or what it needs is not installed.
    """
    if isinstance(location, CheckpointStorage):
        return location
    url = _URL.match(location) if isinstance(location, str) else None
    if url is None:
        if isinstance(location, Path):
            _refuse_url_as_path(location)
        return FileStorage(Path(location).absolute() if absolute else location)
    scheme = url[1].lower()
    known = registry.names(KIND)
    if scheme not in known:
        near = difflib.get_close_matches(scheme, known, n=1)
        raise ConfigError(
            f"no checkpoint storage is registered for {location}",
            cause=f"known schemes: {', '.join(f'{name}://' for name in known)}",
            hint=f"did you mean {near[0]}://?"
            if near
            else "give a directory, or install the package that provides the entry point "
            f"'{scheme}' in the group {registry.KINDS[KIND].group}",
        )
    for package, how in registry.missing(KIND, scheme).items():
        raise ConfigError(f"{scheme}:// needs the package {package}, which is not installed", hint=how)
    factory = registry.load(KIND, scheme)
    storage = factory(location) if callable(factory) else None
    if not isinstance(storage, CheckpointStorage):
        raise ConfigError(f"what is registered for {scheme}:// makes no CheckpointStorage: {factory!r}")
    return storage


def _refuse_url_as_path(path: Path) -> None:
    # Path("s3://bucket/run") is the relative path "s3:/bucket/run".
    first = path.parts[0] if path.parts else ""
    if _URL.match(f"{first}//") and len(path.parts) > 1:
        raise ConfigError(f"{path} is a URL that was made a Path", hint="give the URL as text")


def open_checkpoint(location: str | Path) -> tuple[CheckpointStorage, str]:
    """Return the storage and the name of one checkpoint, given by its path or URL."""
    if isinstance(location, str) and _URL.match(location):
        parent, _, name = location.rstrip("/").rpartition("/")
        return open_storage(parent), name
    path = Path(location)
    # "." and "/" have no name of their own.
    return (FileStorage(path.parent), path.name) if path.name else (FileStorage(path), ".")
