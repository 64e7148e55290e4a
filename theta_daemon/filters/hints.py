"""What the user says of updates, for one request: types by parameter, and the data that goes with them.

From the caller's environment, so that it travels with the request and not with the daemon:

- `GIT_THETA_UPDATE_TYPE`: one type for all parameters; `GIT_THETA_UPDATE_OPTIONS`: its options, a JSON object;
- `GIT_THETA_UPDATE_DATA_PATH`: a checkpoint of arrays named `<parameter>/<key>`, or a PEFT adapter (file or folder);
- `GIT_THETA_HINTS`: a TOML or JSON file of rules, the first that matches a parameter counts.

A rule has `pattern` (of parameter names, `*` and `?`), `type`, and optionally `files` (a pattern of paths), `data` (a path,
relative to the rules' file), and any further keys as options of the type. Paths are relative to the caller's cwd.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from theta_daemon.errors import HintError
from theta_daemon.filters.adapters import Arrays, read_data
from theta_daemon.invocation import Invocation
from theta_daemon.updates.base import Hint

TYPE: Final = "GIT_THETA_UPDATE_TYPE"
OPTIONS: Final = "GIT_THETA_UPDATE_OPTIONS"
DATA: Final = "GIT_THETA_UPDATE_DATA_PATH"
HINTS: Final = "GIT_THETA_HINTS"
VARIABLES: Final = (TYPE, OPTIONS, DATA, HINTS)

_MAX_RULES_BYTES: Final = 4 << 20


class _Rule(BaseModel):
    """One rule as it is written; what is not named here is an option of the type."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    pattern: str = "*"
    files: str = "*"
    type: str
    data: str | None = None


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    rule: tuple[_Rule, ...] = Field(max_length=10_000)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule whose data has been read: per parameter the arrays that go with it."""

    pattern: str
    files: str
    update: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Arrays | None = None

    def hint(self, pathname: str, name: str) -> Hint | None:
        """The hint for a parameter of a file; None where the rule does not speak of it."""
        if not fnmatchcase(name, self.pattern) or not fnmatchcase(pathname, self.files):
            return None
        if self.data is None:
            return Hint(self.update, {}, self.options)
        arrays = self.data.get(name)
        return None if arrays is None else Hint(self.update, arrays, self.options)


@dataclass(frozen=True, slots=True)
class Hints:
    """All rules of a request, in order."""

    rules: Sequence[Rule] = ()

    def hint(self, pathname: bytes, name: str) -> Hint | None:
        """The hint for a parameter, from the first rule that speaks of it."""
        path = pathname.decode(errors="surrogateescape")
        return next((hint for rule in self.rules if (hint := rule.hint(path, name)) is not None), None)

    @classmethod
    def load(cls, invocation: Invocation, known: Callable[[str], object]) -> Hints:
        """The caller's hints. `known(type)` raises for a type that there is not. Raises HintError."""
        env = invocation.env
        rules: list[Rule] = []
        if env.get(HINTS):
            rules += _read_rules(invocation.path(env[HINTS]))
        if env.get(TYPE):
            data = read_data(invocation.path(env[DATA])) if env.get(DATA) else None
            rules.append(Rule("*", "*", env[TYPE], _options(env.get(OPTIONS)), data))
        elif env.get(DATA):
            raise HintError(f"{DATA} is set, but {TYPE} is not", f"set {TYPE} to the type that the data is for")
        for rule in rules:
            try:
                known(rule.update)
            except Exception as error:
                raise HintError(f"update type {rule.update!r}: {error}", "see `git theta add --help`") from error
        return cls(tuple(rules))


def _options(text: str | None) -> Mapping[str, Any]:
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise HintError(f"{OPTIONS}: {error}", "give a JSON object") from error
    if not isinstance(options, dict):
        raise HintError(f"{OPTIONS}: not a JSON object")
    return options


def _read_rules(path: Path) -> list[Rule]:
    """The rules in a TOML (`[[rule]]`) or JSON (`{"rule": [...]}`) file."""
    try:
        if path.stat().st_size > _MAX_RULES_BYTES:
            raise HintError(f"hints file {path}: larger than {_MAX_RULES_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        rules = _Rules.model_validate_json(json.dumps(document)).rule
    except OSError as error:
        raise HintError(f"hints file {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise HintError(f"hints file {path}: {where}: {first['msg']}") from error
    except (ValueError, TypeError) as error:
        raise HintError(f"hints file {path}: {error}") from error
    read: dict[str, Arrays] = {}
    found = []
    for rule in rules:
        if rule.data is not None and rule.data not in read:
            read[rule.data] = read_data(path.parent / rule.data)
        data = None if rule.data is None else read[rule.data]
        found.append(Rule(rule.pattern, rule.files, rule.type, dict(rule.model_extra or {}), data))
    return found
