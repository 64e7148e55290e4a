"""The pointer: the text that git stores instead of a checkpoint.

One canonical JSON object, UTF-8, fixed key order, one parameter a line in file order, so that `git diff` shows a line a
changed parameter and git's delta compression works. Rules that parsing enforces, each with an error that names the field:

- the first line tells a pointer from anything else (`looks_like_pointer`), JSON syntax tells a damaged one (`parse`
  returns None: not a pointer), everything else about a pointer that is wrong is a PointerError;
- parameters are in file order and have unique names, known dtypes, possible sizes;
- sizes add up: the skeleton's literals and the parameters make exactly `size` bytes (checked when the skeleton is read);
- `objects` lists every object needed to rebuild the checkpoint, those of previous pointers included, so that fetch, push,
  prune and fsck need no history;
- a parameter is incremental exactly if it names a previous pointer, and then its depth is at least 1;
- `lineage` is there exactly if a parameter is incremental;
- `seal` is BLAKE3 of all lines above it: whatever mixes the lines of two pointers is found out.

Ground layer: knows no git, no store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass as unchecked
from dataclasses import field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from blake3 import blake3
from pydantic import ConfigDict, FailFast, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from theta_daemon.errors import PointerError
from theta_daemon.jsonbounds import first_error, too_much
from theta_daemon.tensor import DTYPES, MAX_BYTES, TensorSpec

VERSION: Final[Literal[1]] = 1
PREFIX: Final = b'{"theta-pointer":'
"""What a pointer, and nothing else, starts with."""

MAX_POINTER_BYTES: Final = 64 << 20
"""Longer texts are not pointers (30,000 parameters take some 10 MiB)."""

MAX_DEPTH: Final = 1024
"""No chain is longer, whatever `theta.maxDepth` of the one who added it said."""

_STRICT: Final = ConfigDict(
    strict=True, extra="forbid", validate_by_name=True, validate_by_alias=True, defer_build=True
)
_Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_GitId = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
_Count = Annotated[int, Field(ge=0, lt=MAX_BYTES)]
_Index = Annotated[int, Field(ge=0, lt=1 << 32)]
_Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]


class Located(Protocol):
    """What says where a record is: a RecordRef, or the parameter itself."""

    @property
    def object(self) -> str: ...

    @property
    def record(self) -> int: ...


@unchecked(frozen=True, slots=True)
class RecordRef:
    """Where a record is: an object's id and the record's index in that pack. Checked where a pointer is read, not when it
    is put together from fields that have been: a plan has tens of thousands.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    object: _Hex64
    record: _Index


@dataclass(frozen=True, slots=True, config=_STRICT)
class SkeletonRef:
    """The skeleton's record; `digest` is BLAKE3 of the decoded skeleton, `stored` the record's bytes."""

    object: _Hex64
    record: _Index
    digest: _Hex64
    stored: _Count

    @property
    def ref(self) -> RecordRef:
        return RecordRef(self.object, self.record)


@lru_cache(1 << 12)
def _spec(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """A model has few shapes and many parameters, and each is asked for its spec many times."""
    return TensorSpec(DTYPES[dtype], shape)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Parameter:
    """One parameter. `stored` is its record's bytes, `chain` those of all incremental records from its base to itself.

    `previous` is the git blob id of the pointer that holds the previous value, under the name `base` (the parameter's own
    when None); `depth` is 0 for a self-contained update.
    """

    name: str
    dtype: str
    shape: Annotated[tuple[_Count, ...], Field(max_length=64), FailFast()]
    digest: _Hex64
    update: _Word
    object: _Hex64
    record: _Index
    stored: _Count
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] = 0
    chain: _Count | None = None
    previous: _GitId | None = None
    base: str | None = None

    @property
    def spec(self) -> TensorSpec:
        return _spec(self.dtype, self.shape)

    @property
    def ref(self) -> RecordRef:
        return RecordRef(self.object, self.record)

    @property
    def base_name(self) -> str:
        """The name of the previous value in the previous pointer."""
        return self.name if self.base is None else self.base

    @property
    def chain_bytes(self) -> int:
        """Bytes of the incremental records on top of the self-contained base, this one's included."""
        return 0 if self.chain is None else self.chain

    def line(self) -> str:
        """The parameter's line in a pointer."""
        entry: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": self.shape,
            "digest": self.digest,
            "update": self.update,
            "object": self.object,
            "record": self.record,
            "stored": self.stored,
        }
        if self.previous is not None:
            entry |= {"depth": self.depth, "chain": self.chain, "previous": self.previous}
            if self.base is not None:
                entry["base"] = self.base
        return _json(entry)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Pointer:
    """A whole pointer. `history` maps the blob id of each previous pointer to the commit it was taken from."""

    format: _Word
    size: _Count
    digest: _Hex64
    skeleton: SkeletonRef | None
    lineage: RecordRef | None
    history: dict[_GitId, _GitId]
    objects: dict[_Hex64, _Count]
    parameters: Annotated[tuple[Parameter, ...], FailFast()]
    version: Annotated[Literal[1], Field(validation_alias="theta-pointer")] = VERSION
    seal: _Hex64 | None = field(default=None, repr=False, compare=False)
    by_name: Mapping[str, Parameter] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "by_name", {parameter.name: parameter for parameter in self.parameters})

    def encode(self) -> bytes:
        """The canonical text."""
        history = ",\n".join(f'"{blob}":"{commit}"' for blob, commit in sorted(self.history.items()))
        objects = ",\n".join(f'"{oid}":{size}' for oid, size in sorted(self.objects.items()))
        parameters = ",\n".join(parameter.line() for parameter in self.parameters)
        skeleton = None
        if self.skeleton is not None:
            ref = self.skeleton
            skeleton = {"object": ref.object, "record": ref.record, "digest": ref.digest, "stored": ref.stored}
        lineage = None if self.lineage is None else {"object": self.lineage.object, "record": self.lineage.record}
        lines = [
            f'{{"theta-pointer":{VERSION},',
            f'"format":{_json(self.format)},',
            f'"size":{self.size},',
            f'"digest":"{self.digest}",',
            f'"skeleton":{_json(skeleton)},',
            f'"lineage":{_json(lineage)},',
            f'"history":{{{_block(history)}}},',
            f'"objects":{{{_block(objects)}}},',
            f'"parameters":[{_block(parameters)}],',
        ]
        text = "\n".join([*lines, ""]).encode()
        return text + _SEAL_LINE % _seal(text)

    @property
    def refs(self) -> Iterable[RecordRef]:
        """All records that this pointer itself names (not those of previous pointers)."""
        yield from (parameter.ref for parameter in self.parameters)
        if self.skeleton is not None:
            yield self.skeleton.ref
        if self.lineage is not None:
            yield self.lineage


def looks_like_pointer(head: bytes) -> bool:
    """Whether a file that starts with `head` may be a pointer."""
    return head.startswith(PREFIX)


def newer_version(text: bytes) -> bool:
    """Whether `text` is a whole JSON text that says it is a pointer of a later version than this package writes."""
    match = re.match(rb'\{"theta-pointer":([0-9]{1,9})[,}]', text)
    if match is None or int(match.group(1)) <= VERSION:
        return False
    if too_much(text):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False  # damaged or made up: then it is content like any other
    return True


def parse(text: bytes) -> Pointer | None:
    """The pointer in `text`; None when `text` is not one (another start, too long, or no JSON: damaged, conflict marks).

    Raises PointerError when it is one and breaks a rule.
    """
    if not looks_like_pointer(text) or len(text) > MAX_POINTER_BYTES:
        return None
    if newer_version(text):
        raise PointerError("field theta-pointer: this version is not known", "update theta-daemon")
    if too_much(text):
        raise PointerError("field the whole: more entries than a pointer may have", _MADE_BY_HAND)
    head = text[:_HEAD_BYTES]
    for name in _HEAD_FIELDS:
        if b'"%b":' % name not in head:
            # The parser would say so too, but with a copy of everything for each field that it misses.
            raise PointerError(f"field {name.decode()}: is missing, or not at the start", _MADE_BY_HAND)
    try:
        pointer = _POINTER.validate_json(text)
    except ValidationError as error:
        where, what, kind = first_error(error)
        if kind == "json_invalid":
            return None
        raise PointerError(f"field {where}: {what}", _MADE_BY_HAND) from error
    _check_seal(text)
    return pointer


_HEAD_BYTES: Final = 2048
_HEAD_FIELDS: Final = (b"format", b"size", b"digest", b"skeleton", b"lineage", b"history")
_POINTER: Final = TypeAdapter(Pointer)
_MADE_BY_HAND: Final = "the pointer was damaged or made by hand: take it from another commit"
_SEAL_LINE: Final = b'"seal":"%s"}\n'


def _seal(text: bytes) -> bytes:
    """What vouches that these lines were written together."""
    return blake3(text).hexdigest().encode()


def _check_seal(text: bytes) -> None:
    start = text.rfind(b'"seal":')
    if text[start:] != _SEAL_LINE % _seal(text[:start]):
        raise PointerError(
            "field seal: the lines were not written together",
            "the pointer was changed by hand or mixed by a text merge: take it from another commit, or merge again",
        )


def _check(pointer: Pointer) -> None:
    """The rules that one field alone cannot show. Raises PointerError."""
    names: set[str] = set()
    total = 0
    incremental = False
    for parameter in pointer.parameters:
        if parameter.name in names:
            raise PointerError(f"field parameters: parameter {parameter.name!r} stands there twice")
        names.add(parameter.name)
        wrong = _wrong(parameter, pointer)
        if wrong is not None:
            raise PointerError(wrong, "update theta-daemon" if parameter.dtype not in DTYPES else None)
        total += parameter.spec.nbytes
        if total > pointer.size:
            where = f"parameter {parameter.name!r}"
            raise PointerError(f"field shape of {where}: the parameters are larger than the checkpoint")
        incremental = incremental or parameter.previous is not None
    if incremental != (pointer.lineage is not None):
        raise PointerError("field lineage: must be there exactly if a parameter has a previous value")
    if pointer.skeleton is None and total != pointer.size:
        raise PointerError(
            f"field size: {pointer.size}, but the parameters have {total} bytes and there is no skeleton"
        )
    for record in (*pointer.parameters, pointer.skeleton, pointer.lineage):
        if record is not None and record.object not in pointer.objects:
            raise PointerError(f"field objects: lacks {record.object}")


def _wrong(parameter: Parameter, pointer: Pointer) -> str | None:
    """What is wrong with one parameter, its size aside."""
    if parameter.dtype not in DTYPES:
        which, why = "dtype", f"{parameter.dtype!r} is not known"
    elif parameter.previous is None:
        if not parameter.depth and parameter.chain is None and parameter.base is None:
            return None
        which, why = "previous", "is missing, but depth, chain or base is there"
    elif parameter.depth < 1:
        which, why = "depth", "0, but the parameter has a previous value"
    elif parameter.chain is None or parameter.chain < parameter.stored:
        which, why = "chain", "less than stored, or missing"
    elif parameter.previous not in pointer.history:
        which, why = "previous", f"{parameter.previous} is not in history"
    else:
        return None
    return f"field {which} of parameter {parameter.name!r}: {why}"


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def _json(value: Any) -> str:
    return _JSON.encode(value)


def _block(text: str) -> str:
    return f"\n{text}\n" if text else ""
