"""CheckpointStorage: what a place must offer so that checkpoints can be kept there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from dist_train.checkpoint.format.byte_stream import ByteStream, Write


class CheckpointStorage(ABC):
    """Checkpoints below one location: a directory, or the URL of a bucket and prefix.

    Below the location lie committed checkpoints (`step-00000007`), staging areas and other leftovers
    (names that begin with a dot), records (`fence.json`) and `quarantine/`. A checkpoint is a flat set of
    files. A `name` is one of these names, a `key` is `<name>/<file>` or the name of a record.

    What an implementation promises:

    - Every file that `commit` publishes is durable and complete, and appears with all the others at once.
    - `commit` never replaces: of two writers of one name, one gets FileExistsError.
    - A file of a committed checkpoint is read by its key as soon as `commit` has returned, on every node;
      `names` and `files` may lag behind.
    - What fails is an OSError: FileNotFoundError for a missing name, errno ENOSPC or EDQUOT where no more
      bytes fit. A call may be repeated after an error.

    An object store keeps these by uploading to the staging prefix, and committing with a conditional put
    of the manifest (If-None-Match) that records this prefix; `seal` and `sync` have nothing to do there.

    Args:
        location: the path or URL.
    """

    # The URL scheme; the name of the entry point.
    name: ClassVar[str]
    # Whether a run may come back here with an empty run directory, and count its attempts from 0 again.
    outlives_run_directory: ClassVar[bool] = False

    def __init__(self, location: str) -> None:
        self.location = location

    def locate(self, key: str) -> str:
        """Return the path or URL of a name or key, for messages."""
        return f"{self.location.rstrip('/')}/{key}"

    def path_of(self, key: str) -> Path:
        """Return the local path of a name or key; the key alone where there is no local path."""
        return Path(key)

    # Reading.

    @abstractmethod
    def names(self) -> list[str]:
        """List the names below the location; empty where the location does not exist."""

    @abstractmethod
    def files(self, name: str) -> set[str]:
        """List the files of a checkpoint or staging area; FileNotFoundError where there is none."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Tell whether a name or key is there; asks for the key itself, never a listing that may lag.

        Also for a key of a staging area, whichever rank has written it.
        """

    @abstractmethod
    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        """Read a file, or `count` bytes of it from byte `start`; FileNotFoundError where there is none."""

    @abstractmethod
    def open(self, key: str) -> ByteStream:
        """Open a file to read it once from its start; FileNotFoundError where there is none."""

    def drop_cached(self, name: str) -> None:  # noqa: B027
        """Have the next read of a checkpoint come from the medium, where the machine keeps a copy in memory.

        Nothing to do for a storage that every read asks over the network.
        """

    # Writing. Each change is durable when the call returns, except that of `commit`.

    @abstractmethod
    def prepare(self) -> None:
        """Create the location where it does not exist."""

    def free_bytes(self) -> int | None:
        """Return how many bytes may still be written; None where the storage has no limit."""
        return None

    def hold_writer(self, holder: str) -> str | None:
        """Become the one live writer of this location until the process ends; called after `prepare`.

        Args:
            holder: the run, in words.

        Returns:
            None where this process is the writer, also where the storage cannot tell; else the live
            writer in words, its `holder` among them.
        """
        return None

    @abstractmethod
    def create_staging(self, staging: str) -> None:
        """Create an empty staging area; it is not there yet."""

    @abstractmethod
    def new_file(self, key: str) -> AbstractContextManager[Write]:
        """Create a file in a staging area; it is durable when the context ends without an error.

        Several ranks, on several nodes, do so in the area that rank 0 has created.
        """

    @abstractmethod
    def seal(self, staging: str) -> None:
        """Make the list of a staging area's files durable; called once, before `commit`."""

    @abstractmethod
    def commit(self, staging: str, name: str) -> None:
        """Publish a staging area under `name`, atomically; durable after `sync`.

        Raises:
            FileExistsError: there is something under `name`.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make the names below the location durable, where `commit` alone does not."""

    @abstractmethod
    def replace_record(self, record: str, payload: bytes, temporary: str) -> None:
        """Write a record atomically: a reader gets the old bytes or the new ones.

        Args:
            record: its name, below the location.
            payload: its bytes.
            temporary: a name for the new bytes before they replace the old ones, where one is needed.
        """

    @abstractmethod
    def quarantine(self, name: str) -> str:
        """Move a checkpoint to `quarantine/` under the first free `<name>-<number>`; return its new name."""

    def quarantined(self) -> list[str]:
        """List what is in `quarantine/`, oldest first, as `quarantine` named it; `remove` takes these names.

        Empty, too, where the storage does not list them: then nothing is ever removed there.
        """
        return []

    @abstractmethod
    def retire(self, name: str, temporary: str) -> None:
        """Delete a checkpoint so that a crash on the way leaves a whole one, or nothing under `name`.

        Args:
            name: the checkpoint.
            temporary: a name that no reader takes for a checkpoint, for what is not deleted yet.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a staging area or another leftover; a missing one is no error."""
