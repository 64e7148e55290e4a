"""What a pickle says, without doing any of it: a machine that builds inert placeholders.

A pickle is a program; this machine runs it on symbols. It imports nothing, looks no class up, calls nothing and hashes
nothing but memo numbers, so a stranger's pickle can only describe. Work and memory are bounded by the number of opcodes,
depth costs nothing (all loops, no recursion). Opcodes are decoded by the standard library's `pickletools`, which is a
table of readers and executes nothing either. What the machine does not understand is a FormatError.

Knows pickles, not PyTorch.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from theta_daemon.errors import FormatError

MAX_OPCODES: Final = 4_000_000
"""A state of 30,000 tensors takes 1.4 million; more would hold the caller for seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A name that a pickle wants imported: `module name`."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """Something outside the pickle, by its id."""

    id: Any


@dataclass(slots=True, eq=False)
class Sequence:
    """A tuple, a list or a set (the latter two hold a list, which may still grow)."""

    items: list[Any] | tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Mapping:
    """A dict, as the pairs it was filled with, in order."""

    pairs: list[tuple[Any, Any]]


@dataclass(slots=True, eq=False)
class Call:
    """What calling `function` with `arguments` would have made, and what was done to it afterwards."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] | tuple[()] = ()
    pairs: list[tuple[Any, Any]] | tuple[()] = ()


def read(data: bytes, max_opcodes: int = MAX_OPCODES) -> Any:
    """The placeholder of the object that the pickle `data` describes. Raises FormatError."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= max_opcodes:
                raise FormatError("the pickle is too long")
            if opcode.name == "STOP":
                return machine.pop()
            name = opcode.name
            if name in _PLAIN:
                machine.stack.append(argument)
            elif name in _ACTIONS:
                _ACTIONS[name](machine, argument)
            else:
                raise FormatError(f"the pickle uses {name}")
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        # genops' errors for what is cut off or malformed, and the stack's and the memo's for what is not there.
        raise FormatError(f"the pickle is malformed: {error}") from error
    raise FormatError("the pickle does not end")


class _Machine:
    """The pickle machine's stack, marks and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def tuple_since_mark(self) -> Sequence:
        return Sequence(tuple(self.since_mark()))

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("stack underflow")
        self.stack[-count:] = [Sequence(tuple(self.stack[-count:]))]

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def call(self, arguments: int) -> None:
        """REDUCE and its kin: the function lies below its `arguments` stack items."""
        given = self.stack[-arguments:]
        if len(self.stack) <= arguments:
            raise IndexError("stack underflow")
        self.stack[-arguments - 1 :] = [
            Call(self.stack[-arguments - 1], given[0] if arguments == 1 else Sequence(tuple(given)))
        ]

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if not isinstance(target, Call):
            raise FormatError("the pickle gives a state to what has none")
        target.state = state if target.state is None else Sequence((target.state, state))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Sequence) and isinstance(target.items, list):
            target.items.extend(items)
        elif isinstance(target, Call):
            target.items = _grown(target.items, items)
        else:
            raise FormatError("the pickle appends to what is no list")

    def update(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Mapping):
            target.pairs.extend(_pairs(flat))
        elif isinstance(target, Call):
            target.pairs = _grown(target.pairs, _pairs(flat))
        else:
            raise FormatError("the pickle sets items of what is no dict")

    def set_item(self) -> None:
        value = self.pop()
        self.update([self.pop(), value])

    def stack_global(self) -> None:
        name = self.pop()
        module = self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise FormatError("the pickle names a class by something else than text")
        self.push(Global(f"{module} {name}"))

    def obj(self) -> None:
        function, *arguments = self.since_mark()
        self.push(Call(function, Sequence(tuple(arguments))))


def _grown(old: list[Any] | tuple[()], new: list[Any]) -> list[Any]:
    """`old` with `new` at its end; most calls never get any, so that an empty list each would be waste."""
    if isinstance(old, tuple):
        return new
    old.extend(new)
    return old


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    if len(flat) % 2:
        raise FormatError("the pickle has a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


_PLAIN: Final = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "FLOAT",
        "BINFLOAT",
    ]
)
"""Opcodes that push their argument."""

_Action = Callable[[_Machine, Any], object]


def _constant(value: Any) -> _Action:
    return lambda machine, _: machine.push(value)


def _nothing(machine: _Machine, argument: Any) -> None:
    """An opcode without effect on what is described."""


def _table() -> dict[str, _Action]:
    """What each other opcode does. EXT1..4 (names outside the pickle) and out-of-band buffers are left out on purpose."""
    plain = (
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8"
    )
    plain += " BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT BINFLOAT"
    actions: dict[str, _Action] = dict.fromkeys(plain.split(), lambda machine, value: machine.push(value))
    actions |= dict.fromkeys(("PROTO", "FRAME"), _nothing)
    actions |= {"NONE": _constant(None), "NEWTRUE": _constant(True), "NEWFALSE": _constant(False)}
    actions |= {"EMPTY_TUPLE": _constant(Sequence(()))}
    actions |= dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, index: machine.put(index))
    actions |= dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.get(index))
    actions |= dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda machine, _: machine.push(Sequence([])))
    actions |= dict.fromkeys(("TUPLE", "FROZENSET"), lambda machine, _: machine.push(machine.tuple_since_mark()))
    actions |= dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _: machine.extend(machine.since_mark()))
    actions |= {
        "LIST": lambda machine, _: machine.push(Sequence(machine.since_mark())),
        "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
        "MARK": lambda machine, _: machine.mark(),
        "POP": lambda machine, _: machine.pop() if machine.stack else machine.since_mark(),
        "POP_MARK": lambda machine, _: machine.since_mark(),
        "DUP": lambda machine, _: machine.push(machine.stack[-1]),
        "TUPLE1": lambda machine, _: machine.tuple_of(1),
        "TUPLE2": lambda machine, _: machine.tuple_of(2),
        "TUPLE3": lambda machine, _: machine.tuple_of(3),
        "APPEND": lambda machine, _: machine.extend([machine.pop()]),
        "EMPTY_DICT": lambda machine, _: machine.push(Mapping([])),
        "DICT": lambda machine, _: machine.push(Mapping(_pairs(machine.since_mark()))),
        "SETITEM": lambda machine, _: machine.set_item(),
        "SETITEMS": lambda machine, _: machine.update(machine.since_mark()),
        "GLOBAL": lambda machine, name: machine.push(Global(name)),
        "STACK_GLOBAL": lambda machine, _: machine.stack_global(),
        "INST": lambda machine, name: machine.push(Call(Global(name), machine.tuple_since_mark())),
        "OBJ": lambda machine, _: machine.obj(),
        "REDUCE": lambda machine, _: machine.call(1),
        "NEWOBJ": lambda machine, _: machine.call(1),
        "NEWOBJ_EX": lambda machine, _: machine.call(2),
        "BUILD": lambda machine, _: machine.build(),
        "PERSID": lambda machine, name: machine.push(Persistent(name)),
        "BINPERSID": lambda machine, _: machine.push(Persistent(machine.pop())),
    }
    return actions


_ACTIONS: Final = _table()
