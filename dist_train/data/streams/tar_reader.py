"""Read tar archives whose members are grouped by name into samples, as webdataset writes them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dist_train.errors import ConfigError


class TarReader:
    """Tar archives, plain or compressed: consecutive members with one name up to the first dot are a sample.

    A sample is a dict: "__key__" is that name, and each further key is what follows the dot, with the
    member's bytes. Of a plain archive only headers are read for samples that another rank trains on.
    """

    def __call__(self, shard: Any) -> Iterator[Any]:
        """The samples of an archive; `decode` gives their bytes."""
        path = Path(shard)
        if path.suffix == ".tar":
            file = _OpenFile(path)
            for key, members in _grouped(path, "r:"):
                yield _Located(file, key, [(name, m.offset_data, m.size) for name, m, _ in members])
        else:
            for key, members in _grouped(path, "r|*"):
                yield {"__key__": key, **{name: content for name, _, content in members}}

    def decode(self, sample: Any) -> dict[str, Any]:
        """The dict of a sample."""
        if not isinstance(sample, _Located):
            return dict(sample)
        contents = {name: sample.file.read(at, size) for name, at, size in sample.members}
        return {"__key__": sample.key, **contents}

    def count(self, shard: Any) -> int:
        """Number of samples."""
        path = Path(shard)
        return sum(1 for _ in _grouped(path, "r:" if path.suffix == ".tar" else "r|*"))


class _Located(NamedTuple):
    """A sample whose bytes are not read yet."""

    file: _OpenFile
    key: str
    members: list[tuple[str, int, int]]


class _OpenFile:
    """A file descriptor that is closed with the last sample that refers to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                raise ConfigError(
                    f"{self._path} ends at byte {offset}, in the middle of a sample",
                    cause="the archive was cut or written again while it is read",
                    hint="write the archive again, and start the run again",
                )
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)


Member = tuple[str, tarfile.TarInfo, bytes]


def _grouped(path: Path, mode: Any) -> Iterator[tuple[str, list[Member]]]:
    with tarfile.open(path, mode) as archive:
        for key, group in groupby(_members(archive, read=mode != "r:"), key=lambda found: found[0]):
            members = [(name, member, content) for _, name, member, content in group]
            names = [name for name, _, _ in members]
            if len(set(names)) < len(names):
                raise ConfigError(
                    f"{path}: sample {key!r} has two members of one name: {', '.join(names)}",
                    cause="members with one name up to the first dot are one sample",
                    hint="write the archive with different names for different samples",
                )
            yield key, members


def _members(archive: tarfile.TarFile, read: bool) -> Iterator[tuple[str, str, tarfile.TarInfo, bytes]]:
    for member in archive:
        # TarFile keeps every header that it has passed.
        archive.members = []  # type: ignore[attr-defined]
        if not member.isfile():
            continue
        folder, slash, base = member.name.rpartition("/")
        stem, _, ending = base.partition(".")
        content = b""
        if read:
            file = archive.extractfile(member)
            content = b"" if file is None else file.read()
        yield folder + slash + stem, ending, member, content
