"""Take descriptors away from the objects that a fork inherits, before it closes them by number.

A socket or file object that is freed later would close its number once more, which may be another file by
then: what a script had not written out of its buffer was lost so, without an error.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress


def disown_descriptors() -> None:
    """Leave all descriptors open, and no inherited object the owner of one.

    Objects that the collector does not see are not found: those of before gc.freeze, and memory maps.
    """
    for each in gc.get_objects():
        kind = type(each)  # isinstance would ask a proxy for its class
        if issubclass(kind, socket.socket):
            each.detach()
        elif issubclass(kind, io.FileIO):
            if not each.closed and each.closefd:
                _close_but_keep(each.fileno(), each.close)
        elif issubclass(kind, selectors.EpollSelector):
            with suppress(ValueError):  # it is closed
                _close_but_keep(each.fileno(), each.close)


def _close_but_keep(number: int, close: Callable[[], None]) -> None:
    """Close the owner; its number may be that of another file already, so that file stays."""
    copy = None
    try:
        copy, inheritable = os.dup(number), os.get_inheritable(number)
    except OSError as error:
        if error.errno != errno.EBADF:
            return  # no number is left for a copy (a low limit): rather an owner too many than a file less
    with suppress(OSError):
        close()
    if copy is not None:
        os.dup2(copy, number, inheritable)
        os.close(copy)
