"""The configuration dialect: YAML text, dotted keys such as ``fit.lr``, and overrides of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

SHORT = {"data": "source", "backbone": "name", "method": "name"}
"""The key that a section of a single word stands for: ``method: mc`` is ``method.name``."""
_REPLACED = ("timestamp", "float", "bool")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)


class ConfigError(ValueError):
    """A configuration that cannot be used; ``problems`` has one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key in content:
            line = key_node.start_mark.line + 1
            raise yaml.YAMLError(f"the key {key!r} is there twice, again on line {line}")
        content[key] = loader.construct_object(value_node, deep=True)
    return content


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag.rpartition(":")[2] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# PyYAML takes 1e-3 for a word. Integers are tried before, so this may match them, too.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
# Nor is "no" a truth value: it may be the name of a column.
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _Dumper(yaml.SafeDumper):
    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)


def parse(text: str) -> Any:
    """Values of a YAML text: 1e-3 is a number, dates stay text, and no key may be there twice.

    Examples:
        >>> parse("lr: 1e-3")
        {'lr': 0.001}
        >>> parse("[300, 0.5, 2026-01-02, true, no]")
        [300, 0.5, '2026-01-02', True, 'no']
    """
    return yaml.load(text, _Loader)


def text(values: Any) -> str:
    """A YAML text of plain values, in their order."""
    written: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return written


def read_yaml(path: Path) -> Any:
    """Values of a YAML file; a :class:`ConfigError` if it cannot be read, or is no YAML."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError([f"{path}: cannot be read ({reason})"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not YAML ({_one_line(error)})"]) from error


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Values of ``"key.sub=value"`` by dotted key, later ones last."""
    changes: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError([f"{override!r} must be key=value, such as fit.lr=0.01"])
        changes.pop(key, None)
        try:
            changes[key] = parse(value)
        except yaml.YAMLError as error:
            raise ConfigError([f"{key}: {value!r} is not YAML ({_one_line(error)})"]) from error
    return changes


def changed(
    content: Mapping[str, Any], changes: Mapping[str, Any], *, merge: bool = False
) -> dict[str, Any]:
    """A copy of nested sections with other values for some dotted keys, set in their order.

    A section that is a single word is expanded when a key of it changes. With ``merge``, a mapping
    changes single keys of its section instead of all of it.

    Examples:
        >>> changed({"fit": {"lr": 1, "epochs": 2}, "method": "mc"}, {"fit.lr": 3, "method.a": 4})
        {'fit': {'lr': 3, 'epochs': 2}, 'method': {'name': 'mc', 'a': 4}}
        >>> changed({"fit": {"lr": 1, "epochs": 2}}, {"fit": {"lr": 3}})
        {'fit': {'lr': 3}}
        >>> changed({"fit": {"lr": 1, "epochs": 2}}, {"fit": {"lr": 3}}, merge=True)
        {'fit': {'lr': 3, 'epochs': 2}}
    """
    result = copy.deepcopy(dict(content))
    for key, value in (flatten(changes) if merge else changes).items():
        *sections, last = key.split(".")
        if not sections and last in SHORT and not isinstance(value, Mapping):
            sections, last = [last], SHORT[last]
        section = result
        for depth, name in enumerate(sections):
            inner = section.get(name)
            if not isinstance(inner, dict):
                word = inner is not None and depth == 0 and name in SHORT  # "method: mc"
                inner = section[name] = {SHORT[name]: inner} if word else {}
            section = inner
        section[last] = list(value) if isinstance(value, tuple) else value
    return result


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one value per dotted key, such as ``{"fit.lr": 0.1, "seed": 0}``."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            values |= flatten(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
