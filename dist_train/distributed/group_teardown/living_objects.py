"""Every living object of a class, as the cyclic garbage collector knows it."""

from __future__ import annotations

import gc
from typing import Any


def living_objects(kind: type) -> list[Any]:
    """Return the objects of this class and of those derived from it.

    Classes first: issubclass for each of 300,000 objects takes 0.1 s where the class has an abstract base.
    """
    objects = gc.get_objects()
    kinds = {each for each in set(map(type, objects)) if kind in each.__mro__}
    return [found for found in objects if type(found) in kinds] if kinds else []
