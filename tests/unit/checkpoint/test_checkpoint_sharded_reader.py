"""Reads of any bytes of a file: the same as of the whole, on any storage, and each block compared."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_train.checkpoint.format.block_hashes import file_entry
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_file import Header
from dist_train.checkpoint.store.sharded_reader import _Blocks, _OpenFile

SIZE = 64
CONTENT = bytes(range(256)) * 2 + b"rest"


def file(content: bytes = CONTENT) -> _OpenFile:
    blocks = [content[place : place + SIZE] for place in range(0, len(content), SIZE)]
    entry, _ = file_entry("f", len(content), [xxhash.xxh3_128_hexdigest(block) for block in blocks])
    digests = entry.xxh3_128
    return _OpenFile(entry.model_copy(update={"block_bytes": SIZE}), digests, Header({}, {}), {})


def reader(content: bytes, most: int = 10_000) -> _Blocks:
    def read_at(view: memoryview, place: int) -> int:
        raw = content[place : place + min(len(view), most)]
        view[: len(raw)] = raw
        return len(raw)

    return _Blocks(file(), read_at)


@given(
    place=st.integers(0, len(CONTENT)), count=st.integers(0, len(CONTENT)), most=st.sampled_from([7, 10_000])
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_those_of_the_file(place: int, count: int, most: int) -> None:
    count = min(count, len(CONTENT) - place)
    found = bytearray(count)
    reader(CONTENT, most).read(place, memoryview(found))
    assert bytes(found) == CONTENT[place : place + count]


@pytest.mark.parametrize("bad", [0, 63, 64, 300, 511, 512, 515])
def test_a_changed_byte_is_found_by_every_read_of_its_block_and_by_no_other(bad: int) -> None:
    changed = CONTENT[:bad] + bytes([CONTENT[bad] ^ 1]) + CONTENT[bad + 1 :]
    for place in range(0, len(CONTENT), 13):
        for count in (1, 60, 130):
            stop = min(len(CONTENT), place + count)
            touched = range(place // SIZE, (stop - 1) // SIZE + 1)
            found = bytearray(stop - place)
            if bad // SIZE in touched:
                with pytest.raises(DamagedCheckpoint, match=f"f: block {bad // SIZE} "):
                    reader(changed).read(place, memoryview(found))
            else:
                reader(changed).read(place, memoryview(found))


def test_a_file_that_is_cut_is_named() -> None:
    with pytest.raises(DamagedCheckpoint, match="f ends at byte 500"):
        reader(CONTENT[:500]).read(0, memoryview(bytearray(len(CONTENT))))
