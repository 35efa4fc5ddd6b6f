"""Let no DDP reducer be the last to hold its process group: freeing it would block the interpreter.

In torch 2.13 a DDP object that is freed after destroy_process_group() can hang: its reducer holds the
last reference to the group, and is freed with the interpreter's lock (GIL) held; the group's destructor
joins gloo's run-loop thread; and that thread may wait for the lock, to free its last work, to which each
backward now attaches a Python object. So a Python reference to the group is kept here until the reducer
and its logger are freed. Dropped after them, it frees the group through torch's own holder of it, which
releases the lock first.

`__init__` of torch's two classes is what is wrapped: the classes stay what they are for isinstance,
annotations and torch itself, and both their names are covered. This module imports nothing of torch.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

from dist_train.distributed.after_import import act_after_import

_TORCH_DISTRIBUTED = "torch.distributed"
# The first parameters as the constructors' docstrings have them; what follows may change.
_REDUCER = ("self", "params", "bucket_indices", "per_bucket_size_limits", "process_group")
_LOGGER = ("self", "reducer")
_GROUP_POSITION = _REDUCER.index("process_group")
_PARAMETER = re.compile(r"(\w+): ")
_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC

# Weak reference to a living reducer or logger -> the one group that it may hold.
_groups: dict[weakref.ref[Any], list[object]] = {}


def keep_groups_for_reducers() -> bool:
    """Keep every process group until the reducers and loggers on it are freed; True if that is in place.

    A second call does nothing. Of a torch whose classes are not as expected nothing is changed, and a
    warning is logged; a torch without torch.distributed has no reducers.
    """
    dist = sys.modules.get(_TORCH_DISTRIBUTED)
    reducer: Any = getattr(dist, "Reducer", None)
    if reducer is None:
        return False
    if getattr(reducer.__init__, "_keeps_groups", None) is not None:
        return bool(reducer.__init__._keeps_groups)
    logger: Any = getattr(dist, "Logger", None)
    unexpected = _unexpected(reducer, _REDUCER) or _unexpected(logger, _LOGGER)
    if unexpected is not None:
        _warn_once(unexpected)
        return False
    _wrap(reducer, _group_of_reducer)
    _wrap(logger, _groups_of_logged)
    if hasattr(reducer, "_update_process_group"):
        reducer._update_process_group = _keeping_new_group(reducer._update_process_group)
    atexit.register(never_free_kept_groups)
    return True


def keep_groups_once_torch_is_imported() -> None:
    """Call keep_groups_for_reducers as soon as the script has imported torch.distributed; imports nothing."""
    act_after_import(_TORCH_DISTRIBUTED, lambda: keep_groups_for_reducers())


def never_free_kept_groups() -> int:
    """Keep these groups to the end of the process; returns how many.

    While the interpreter ends, this module may be cleared before the user's model is freed.
    """
    groups = {id(group): group for held in list(_groups.values()) for group in held}
    for group in groups.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    return len(groups)


def _unexpected(kind: Any, first: tuple[str, ...]) -> str | None:
    """What is not as expected of one of the classes; None if all is.

    Were its objects known to the garbage collector, or of a Python class, their weak references would
    be cleared before the C++ destructor, and the groups too early.
    """
    if not isinstance(kind, type):
        return f"it is {kind!r}"
    constructor: Any = getattr(kind, "__init__")  # noqa: B009 -- mypy: unsound, of an object that is a type
    said = (constructor.__doc__ or "").partition("\n")[0]
    names = tuple(_PARAMETER.findall(said))[: len(first)]
    if names != first:
        return f"{kind.__name__}'s first parameters are ({', '.join(names)}), not ({', '.join(first)})"
    if kind.__weakrefoffset__ <= 0 or kind.__flags__ & _HAS_GC:
        return f"{kind.__name__}'s objects are collected in another way"
    return None


def _wrap(kind: Any, groups_of: Callable[[tuple[Any, ...], dict[str, Any]], list[object]]) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _groups[weakref.ref(self, _forget)] = groups_of(args, kwargs)

    construct._keeps_groups = True  # type: ignore[attr-defined]
    kind.__init__ = construct


def _group_of_reducer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    position = _GROUP_POSITION - 1  # without self
    return [args[position] if len(args) > position else kwargs["process_group"]]


def _groups_of_logged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    # The same list: a group that the reducer changes to is the logger's, too.
    return _groups.get(weakref.ref(args[0] if args else kwargs["reducer"]), [])


def _keeping_new_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def update(self: Any, new_process_group: object) -> None:
        original(self, new_process_group)
        # In place: its logger has the same list. The old group is freed here, where others hold it no more.
        _groups.setdefault(weakref.ref(self, _forget), [])[:] = [new_process_group]

    return update


def _forget(freed: weakref.ref[Any]) -> None:
    # Called after the C++ destructor; what this drops frees the group, if nothing else holds it.
    _groups.pop(freed, None)


@functools.cache
def _warn_once(unexpected: str) -> None:
    import logging  # only here: a rank that has no need of it starts without

    torch: Any = sys.modules["torch"]
    logging.getLogger(__name__).warning(
        "torch %s has another torch.distributed.Reducer or Logger than expected (%s): left alone. A DDP "
        "model freed after destroy_process_group() may block this process; free the model before the group",
        torch.__version__,
        unexpected,
    )
