"""YAML as configurations need it: safe, 1e-3 is a number, no dates, no key twice, words stay."""

from __future__ import annotations

import re
from typing import Any

import yaml

_OTHER = ("timestamp", "float", "bool")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key in found:
            raise yaml.YAMLError(f"the key {key!r} is there twice, again on line "
                                 f"{key_node.start_mark.line + 1}")  # fmt: skip
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0].rpartition(":")[2] not in _OTHER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# PyYAML takes 1e-3 for a word. Integers are tried before, so this may match them, too.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
# Nor is "no" a truth value: it may be the name of a column.
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse(text: str) -> Any:
    """Values of a YAML text.

    Raises:
        yaml.YAMLError: If it is none.

    Examples:
        >>> parse("lr: 1e-3")
        {'lr': 0.001}
        >>> parse("[300, 0.5, 2026-01-02, true, no]")
        [300, 0.5, '2026-01-02', True, 'no']
    """
    return yaml.load(text, _Loader)


def text(values: Any) -> str:
    """A YAML text of plain values, in their order.

    Examples:
        >>> print(text({"fit": {"lr": 1e-5, "milestones": [0.5, 0.75]}}))
        fit:
          lr: 1.0e-05
          milestones: [0.5, 0.75]
        <BLANKLINE>
    """
    written: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return written


class _Dumper(yaml.SafeDumper):
    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)
