"""Where the block hashes of a file stand: in the manifest, or, of a large file, in one beside it.

A manifest is read at every start by every node: at 35 bytes of JSON for each MiB, the hashes of a checkpoint
of some TB would be most of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.layout import blocks_name
from dist_train.checkpoint.format.manifest import FileEntry

# With more blocks, the hashes stand in a file of their own.
MOST_INLINE = 256
_HASH_BYTES = 16


def file_entry(name: str, count: int, digests: Sequence[str]) -> tuple[FileEntry, bytes]:
    """Return the manifest's entry of a file, and the content of its file of block hashes; empty without one.

    Args:
        name: of the file.
        count: of its bytes.
        digests: its block hashes.
    """
    if len(digests) <= MOST_INLINE:
        return FileEntry(name=name, bytes=count, block_bytes=BLOCK_BYTES, xxh3_128=list(digests)), b""
    raw = bytes.fromhex("".join(digests))
    own = xxhash.xxh3_128_hexdigest(raw)
    return FileEntry(name=name, bytes=count, block_bytes=BLOCK_BYTES, xxh3_128=[], blocks_xxh3=own), raw


def parse_blocks(entry: FileEntry, raw: bytes) -> list[str]:
    """Return the block hashes of a file from the content of its file of them.

    Raises:
        DamagedCheckpoint: it is not the one that the manifest names.
    """
    name = blocks_name(entry.name)
    wanted = -(-entry.bytes // entry.block_bytes) * _HASH_BYTES
    if len(raw) != wanted or xxhash.xxh3_128_hexdigest(raw) != entry.blocks_xxh3:
        raise DamagedCheckpoint(f"{name} does not match its hash in the manifest", file=name)
    return [raw[start : start + _HASH_BYTES].hex() for start in range(0, wanted, _HASH_BYTES)]
