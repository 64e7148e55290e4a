"""What the user says of updates, for one request: types by parameter, and the data that goes with them.

From the caller's environment, so that it travels with the request and not with the daemon:

- `GIT_THETA_UPDATE_TYPE`: one type for all parameters; `GIT_THETA_UPDATE_OPTIONS`: its options, a JSON object;
- `GIT_THETA_UPDATE_DATA_PATH`: a checkpoint of arrays named `<parameter>/<key>`, or a PEFT adapter (file or folder);
- `GIT_THETA_HINTS`: a TOML or JSON file of rules, the first that speaks of a parameter counts.

A rule has `pattern` (of parameter names, `*` and `?`), `type`, and optionally `files` (a pattern of paths from the top of
the work tree), `data` (a path, relative to the rules' file), `prefix` (what parameter names have in front of the data's),
`define` (true: `git theta add` gives unchanged parameters the values that the rule means; data always does), and any further
keys as options of the type. How parameters are initialised is such rules too, see `recipe`. Paths are
relative to the folder in which git was called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field

from theta_daemon.errors import HintError, PointerError
from theta_daemon.filters.adapters import WHOLE, Arrays, read_data
from theta_daemon.filters.recipe import Embedded, InitRule, Streams, expand, read_document, validated
from theta_daemon.invocation import Invocation
from theta_daemon.tensor import TensorSpec
from theta_daemon.updates.base import Hint
from theta_daemon.updates.floats import Array

TYPE: Final = "GIT_THETA_UPDATE_TYPE"
OPTIONS: Final = "GIT_THETA_UPDATE_OPTIONS"
DATA: Final = "GIT_THETA_UPDATE_DATA_PATH"
HINTS: Final = "GIT_THETA_HINTS"
VARIABLES: Final = (TYPE, OPTIONS, DATA, HINTS)


class _Rule(BaseModel):
    """One rule as it is written; what is not named here is an option of the type."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)

    pattern: str = "*"
    files: str = "*"
    type: str
    data: str | None = None
    prefix: str = ""
    define: bool = False


class _Document(BaseModel):
    """A rules' file. The other keys are a recipe's (`recipe.Document`), so that a recipe can be given as hints."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)

    rule: tuple[_Rule, ...] = Field(max_length=10_000)
    seed: int | None = None
    streams: Streams = "per-tensor"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule whose data has been read: per parameter the arrays that go with it."""

    pattern: str
    files: str
    update: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Arrays | None = None
    prefix: str = ""
    define: bool = False

    def arrays(self, pathname: str, name: str) -> Mapping[str, Any] | None:
        """The arrays for a parameter of a file, an empty mapping for a rule without data; None: another rule's matter."""
        if not fnmatchcase(name, self.pattern) or not fnmatchcase(pathname, self.files):
            return None
        if self.data is None:
            return {}
        return self.data.get(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None


@dataclass(frozen=True, slots=True)
class Hints:
    """All rules of a request, in order. `fingerprint` tells requests apart that say different things; empty: nothing."""

    rules: Sequence[Rule] = ()
    seed: int | None = None
    streams: Streams = "per-tensor"
    fingerprint: str = ""

    def for_file(self, pathname: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, Hint]:
        """The hints for the parameters of a file, given in file order; none for empty ones. Raises HintError."""
        if not self.rules:
            return {}
        path = pathname.decode(errors="surrogateescape")
        found = {}
        for name, spec in specs.items():
            for rule in self.rules if spec.elements else ():
                arrays = rule.arrays(path, name)
                if arrays is not None:
                    if WHOLE not in arrays:
                        found[name] = Hint(rule.update, arrays, rule.options)
                    break
        return expand(found, specs, self.seed, self.streams)

    def defines(self, pathname: bytes, name: str) -> bool:
        """Whether the rule that speaks of a parameter says what its value shall be: with data, or by its `define`."""
        path = pathname.decode(errors="surrogateescape")
        rule = next((rule for rule in self.rules if rule.arrays(path, name) is not None), None)
        return rule is not None and (rule.data is not None or rule.define)

    def whole_values(self, pathname: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        """New values that the data brings as they are."""
        path = pathname.decode(errors="surrogateescape")
        found = {}
        for name in specs:
            spoken = next((arrays for rule in self.rules if (arrays := rule.arrays(path, name)) is not None), {})
            if WHOLE in spoken:
                found[name] = spoken[WHOLE]
        return found

    def unused(self, names: Sequence[str]) -> list[str]:
        """Parameters that the data speaks of and that are not among `names`."""
        spoken = set()
        for rule in self.rules:
            data = rule.data or {}
            # An adapter does not say whether a module has the bias that shares its weight's scale.
            implied = {
                f"{key.removesuffix('weight')}bias" for key in data if key.endswith(".weight") and "ia3" in data[key]
            }
            spoken |= {rule.prefix + key for key in data if key not in implied}
        return sorted(spoken - set(names))

    @classmethod
    def load(cls, invocation: Invocation, known: Callable[[str], object]) -> Hints:
        """The caller's hints. `known(type)` raises for a type that there is not. Raises HintError, PluginError."""
        env = invocation.env
        if not any(env.get(variable) for variable in VARIABLES):
            return cls()
        here = invocation.cwd / env.get("GIT_PREFIX", "")  # git runs filters at the top; this is where its user is
        seen = blake3("\0".join(env.get(variable, "") for variable in VARIABLES).encode(errors="surrogateescape"))
        rules: list[Rule] = []
        document = _Document(rule=())
        if env.get(HINTS):
            document, rules = _read_rules(here / env[HINTS], seen)
        if env.get(TYPE):
            data = read_data(here / env[DATA], seen) if env.get(DATA) else None
            options = _options(env.get(OPTIONS))
            define = bool(options.pop("define", False))
            rules.append(Rule("*", "*", env[TYPE], options, data, define=define))
        elif env.get(DATA) or env.get(OPTIONS):
            raise HintError(f"{DATA} or {OPTIONS} is set, but {TYPE} is not", f"set {TYPE} to the type they are for")
        for rule in rules:
            try:
                known(rule.update)
            except PointerError as error:
                raise HintError(error.message, "see `git theta add --help` for the types that there are") from error
        return cls(tuple(rules), document.seed, document.streams, seen.hexdigest())


def initial(recipe: Embedded, specs: Mapping[str, TensorSpec]) -> dict[str, Hint]:
    """The hints that a recipe is. Raises HintError."""
    rules = [Rule(rule.pattern, "*", rule.type, rule.options) for rule in recipe.rule]
    return Hints(rules, recipe.seed, recipe.streams).for_file(b"", specs)


def embedded(text: str | None, specs: Mapping[str, TensorSpec]) -> dict[str, Hint]:
    """The hints in a recipe that a checkpoint carries; none if it is not one. Comes from strangers: never raises."""
    recipe = validated(text, len(specs))
    try:
        return {} if recipe is None else initial(recipe, specs)
    except HintError:
        return {}


def _options(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise HintError(f"{OPTIONS}: {error}", "give a JSON object") from error
    if not isinstance(options, dict):
        raise HintError(f"{OPTIONS}: not a JSON object")
    return options


def _read_rules(path: Path, seen: blake3) -> tuple[_Document, list[Rule]]:
    """The rules in a TOML (`[[rule]]`) or JSON (`{"rule": [...]}`) file."""
    document = read_document(path, _Document, "hints file", seen)
    read: dict[str, Arrays] = {}
    found = []
    for rule in document.rule:
        if rule.data is not None and rule.data not in read:
            read[rule.data] = read_data(path.parent / rule.data, seen)
        data = None if rule.data is None else read[rule.data]
        options = InitRule.normal_options(rule.type, dict(rule.model_extra or {}))
        found.append(Rule(rule.pattern, rule.files, rule.type, options, data, rule.prefix, rule.define))
    return document, found
