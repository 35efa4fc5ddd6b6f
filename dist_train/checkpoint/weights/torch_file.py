"""Open files of torch.save without running any code that may be in them."""

from __future__ import annotations

import pickle
import re
import shlex
import zipfile
from pathlib import Path
from typing import BinaryIO

import torch

from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.errors import CheckpointError

_GLOBAL = re.compile(r"GLOBAL (\S+)")


def read_torch_file(path: Path) -> object:
    """Return what torch.save was given, its tensors on the CPU.

    Raises:
        CheckpointError: it needs pickle, or it is no file of torch.save.
        DamagedCheckpoint: it is cut short or changed.
    """
    # Not by its name: torch 2.13 takes every *.safetensors for one, whatever is in it.
    with open(path, "rb") as file:
        return read_torch_stream(file, path)


def read_torch_stream(file: BinaryIO, path: Path) -> object:
    """The same for an open file, or a part of one.

    Args:
        file: to be read from its start.
        path: named in errors.
    """
    try:
        if zipfile.is_zipfile(file):
            _check_archive(file, path)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise _refused(file, path, error) from None
    except Exception as error:  # neither torch nor zipfile has one error for a file that makes no sense
        first = (str(error).splitlines() or [""])[0]
        raise DamagedCheckpoint(
            f"{path} cannot be read as a file of torch.save: {type(error).__name__}: {first}", file=path.name
        ) from error


def _check_archive(file: BinaryIO, path: Path) -> None:
    """Check its kind and the checksum of every record: torch.load itself compares none."""
    with zipfile.ZipFile(file) as archive:
        records = [entry for entry in archive.infolist() if entry.file_size]
        names = {entry.filename.partition("/")[2] for entry in records}
        if "constants.pkl" in names:
            raise CheckpointError(
                f"{path} is a TorchScript program, not weights",
                hint=_by_hand(path, "torch.jit.load({0}).state_dict()"),
            )
        if "data.pkl" not in names:
            raise CheckpointError(f"{path} is a zip archive, but none that torch.save wrote")
        wrong = [entry.filename for entry in records if not _whole(archive, entry)]
    # torch.serialization.set_crc32_options(False) writes files in which no sum is right.
    if wrong and len(wrong) < len(records):
        raise DamagedCheckpoint(
            f"{path} is damaged: its record {wrong[0]} is not what was written",
            file=path.name,
        )


def _whole(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(entry) as record:
            while record.read(1 << 20):
                pass
    except zipfile.BadZipFile:
        return False
    return True


def _refused(file: BinaryIO, path: Path, error: pickle.UnpicklingError) -> CheckpointError:
    names = _wanted(file, error)
    if not names:
        reason = (
            str(error).partition("WeightsUnpickler error:")[2].split("Check the documentation")[0].strip()
        )
        return DamagedCheckpoint(
            f"{path} cannot be read as a file of torch.save: {reason or error}", file=path.name
        )
    whole = any(name.startswith("torch.nn.") or name.endswith(("Module", "Model")) for name in names)
    what = "the whole model was saved, not its state_dict()" if whole else "it holds more than tensors"
    part = "{0}.state_dict()" if whole else "{0}['state_dict']"
    return CheckpointError(
        f"{path} needs pickle ({', '.join(names[:5])}), which is refused: {what}",
        cause="unpickling runs whatever code the maker of the file put into it",
        hint="if you trust its maker, write the weights alone once, in a container without your keys: "
        + _by_hand(path, part.replace("{0}", "torch.load({0}, weights_only=False)")),
    )


def _wanted(file: BinaryIO, error: pickle.UnpicklingError) -> list[str]:
    """List the classes and functions that the file calls by name and that are not known to be harmless."""
    try:
        file.seek(0)
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # only files in the newer format can be examined
        return list(dict.fromkeys(name.rstrip(".,") for name in _GLOBAL.findall(str(error))))


def _by_hand(path: Path, expression: str) -> str:
    taken = expression.replace("{0}", repr(str(path)))
    target = repr(f"{path.stem}-weights.pt")
    return "python -c " + shlex.quote(f"import torch; torch.save({taken}, {target})")
