"""Read a pickle as data: nothing that it names is imported, called or changed.

What it would make of classes and functions is recorded instead. Only the opcodes are known that pickle writes
for plain records (protocols 2 to 5).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Named(NamedTuple):
    """A class or function that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Made:
    """What would be made by a call of `of`: its arguments, and the state that it would be given.

    Args:
        of: the class or function.
        arguments: of the call.
        state: None where there is none.
    """

    of: Named
    arguments: tuple[Any, ...]
    state: Any = None


class UnknownName(Exception):
    """A pickle names what is not allowed.

    Args:
        named: the class or function.
    """

    def __init__(self, named: Named) -> None:
        super().__init__(f"it names {named}")
        self.named = named


def read_pickle(raw: bytes, is_allowed: Callable[[Named], bool]) -> object:
    """Return the record in a pickle: dicts, lists, tuples, plain values, and `Named` and `Made`.

    Args:
        raw: the bytes of the pickle.
        is_allowed: whether a class or function may be named in it.

    Raises:
        UnknownName: it names another one.
        ValueError: it is no pickle of a plain record.
    """
    machine = _Machine(is_allowed)
    try:
        for opcode, argument, position in pickletools.genops(raw):
            if opcode.name == "STOP":
                (found,) = machine.stack
                return found
            act = _ACTIONS.get(opcode.name)
            if act is None:
                raise ValueError(f"opcode {opcode.name} at byte {position} is none of a plain record")
            act(machine, argument)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it makes no sense as a pickle ({type(error).__name__})") from error
    raise ValueError("it has no end")


class _Machine:
    """The stack and the memo of a pickle that is read."""

    def __init__(self, is_allowed: Callable[[Named], bool]) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._is_allowed = is_allowed

    def push(self, value: object) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self._below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self._below.pop()
        return found

    def remember(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self.stack[-1]

    def recall(self, place: int) -> None:
        self.stack.append(self._memo[place])

    def name(self, text: str | None) -> None:
        """Push a class or function; without text, its module and name are on the stack."""
        module, name = text.split(" ", 1) if text is not None else (None, None)
        if text is None:
            name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it names a class by something that is no text")
        if not self._is_allowed(named := Named(module, name)):
            raise UnknownName(named)
        self.stack.append(named)

    def make(self) -> None:
        arguments, of = self.stack.pop(), self.stack.pop()
        if not isinstance(of, Named) or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is no class or function")
        self.stack.append(Made(of, arguments))

    def give_state(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, Made) or made.state is not None:
            raise ValueError("it gives a state to something that has none")
        made.state = state

    def add_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("it adds a key to something that is no dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def add_values(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("it adds a value to something that is no list")
        target.extend(values)

    def take(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise ValueError("it takes what is not there")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found


_Act = Callable[[_Machine, Any], None]
_PLAIN = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES"),
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _push(machine: _Machine, argument: object) -> None:
    machine.push(argument)


def _constant(value: object) -> _Act:
    return lambda machine, _: machine.push(value)


def _tuple_of(count: int) -> _Act:
    return lambda machine, _: machine.push(tuple(machine.take(count)))


_ACTIONS: dict[str, _Act] = {
    "PROTO": lambda _machine, _: None,
    "FRAME": lambda _machine, _: None,
    **dict.fromkeys(_PLAIN, _push),
    **{name: _constant(value) for name, value in _CONSTANTS.items()},
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    **{name: _tuple_of(count) for count, name in enumerate(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"))},
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "SETITEM": lambda machine, _: machine.add_items(machine.take(2)),
    "SETITEMS": lambda machine, _: machine.add_items(machine.since_mark()),
    "APPEND": lambda machine, _: machine.add_values(machine.take(1)),
    "APPENDS": lambda machine, _: machine.add_values(machine.since_mark()),
    "MEMOIZE": lambda machine, _: machine.remember(None),
    "BINPUT": lambda machine, place: machine.remember(place),
    "LONG_BINPUT": lambda machine, place: machine.remember(place),
    "BINGET": lambda machine, place: machine.recall(place),
    "LONG_BINGET": lambda machine, place: machine.recall(place),
    "GLOBAL": lambda machine, text: machine.name(text),
    "STACK_GLOBAL": lambda machine, _: machine.name(None),
    "REDUCE": lambda machine, _: machine.make(),
    "NEWOBJ": lambda machine, _: machine.make(),
    "BUILD": lambda machine, _: machine.give_state(),
}
