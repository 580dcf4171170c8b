"""The configuration of a run: data, backbone, method, training and a seed, read from YAML.

Everything is checked here, before any data is read. Errors are lines of our own that name the
dotted key, what it got and what it takes. Knows nothing of how a run is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from gflowout.app import faults, yamls
from gflowout.app.sections import (
    CLINICAL,
    SECTIONS,
    SOURCES,
    BackboneConfig,
    Config,
    ConfigError,
    DataConfig,
    MethodConfig,
    is_file,
)

__all__ = [
    "CLINICAL",
    "SOURCES",
    "BackboneConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "MethodConfig",
    "build",
    "flat",
    "from_flat",
    "is_file",
    "nested",
    "read",
    "with_changes",
    "write",
]

_SHORT = {"data": "source", "backbone": "name", "method": "name"}
"""What a section that is a single word stands for: ``method: mc``."""


def read(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Args:
        path: A YAML file; ``None`` for the defaults.
        overrides: ``"key.sub=value"``, with values as in YAML. Later ones win.

    Raises:
        ConfigError: If anything in it cannot be used.

    Examples:
        >>> config = read(None, ["data=mnist", "fit.lr=1e-2", "method.options.hidden=[16]"])
        >>> config.data.source, config.fit.lr, config.method.options
        ('mnist', 0.01, {'hidden': [16]})
        >>> read(None, ["data=mnist", "fit.lrr=1"])
        Traceback (most recent call last):
            ...
        gflowout.app.sections.ConfigError: fit.lrr: there is no such key; did you mean
        'fit.lr'?
    """
    raw = {} if path is None else _read_file(path)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError([f"{text!r} must be key=value, such as fit.lr=0.01"])
        try:
            parsed = yamls.parse(value)
        except yaml.YAMLError as error:
            raise ConfigError([f"{key}: {value!r} is not YAML ({_first_line(error)})"]) from error
        _put(raw, key.strip(), parsed)
    return build(raw)


def build(raw: Mapping[str, Any]) -> Config:
    """Check a nested dictionary and make a configuration of it.

    Raises:
        ConfigError: With all problems that were found.
    """
    content: dict[str, Any] = {"data": {}, **_expanded(raw)}
    problems = faults.unknown_keys(content)
    known = {key: content[key] for key in content if key in Config.model_fields}
    for section, names in SECTIONS.items():
        if isinstance(known.get(section), dict):
            known[section] = {
                name: known[section][name] for name in names if name in known[section]
            }
    config = None
    try:
        # As JSON, where lists may become tuples although nothing else is converted.
        config = _ADAPTER.validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        problems += [faults.line(dict(each), content) for each in error.errors()]
    except TypeError as error:
        problems.append(f"fit.{error}")
    if config is not None:
        problems += faults.method_faults(config.method) + faults.data_faults(config.data)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def write(config: Config, path: Path) -> None:
    """Write every value to a YAML file, which :func:`read` reads back equal."""
    from gflowout.core.atomic_io import write_file

    text = yamls.text(nested(config)).encode()
    write_file(path, lambda stream: stream.write(text))


def nested(config: Config) -> dict[str, Any]:
    """A configuration as a nested dictionary of plain values."""
    content: dict[str, Any] = config.model_dump(mode="json")
    del content["fit"]["seed"]
    return content


def flat(config: Config) -> dict[str, Any]:
    """A configuration as one value per dotted key.

    Examples:
        >>> values = flat(read(None, ["data=mnist", "method.options.hidden=[16]"]))
        >>> values["fit.epochs"], values["method.options.hidden"], values["seed"]
        (20, [16], 0)
        >>> from_flat(values) == read(None, ["data=mnist", "method.options.hidden=[16]"])
        True
    """
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                walk(f"{prefix}.{key}" if prefix else key, part)
        else:
            found[prefix] = value

    walk("", nested(config))
    return found


def from_flat(values: Mapping[str, Any]) -> Config:
    """The configuration of :func:`flat`; keys that are left out have their defaults."""
    raw: dict[str, Any] = {}
    for key, value in values.items():
        _put(raw, key, list(value) if isinstance(value, tuple) else value)
    return build(raw)


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration with other values for some dotted keys, checked again.

    Examples:
        >>> config = read(None, ["data=mnist"])
        >>> with_changes(config, {"fit.lr": 0.01, "method.options.beta": 0.5}).fit.lr
        0.01
    """
    raw = nested(config)
    for key, value in changes.items():
        _put(raw, key, list(value) if isinstance(value, tuple) else value)
    return build(raw)


_ADAPTER = TypeAdapter(Config)


def read_yaml(path: Path) -> Any:
    """What is in a YAML file.

    Raises:
        ConfigError: If it cannot be read, or is no YAML.
    """
    try:
        return yamls.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError([f"{path}: cannot be read ({reason})"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not YAML ({_first_line(error)})"]) from error


def _read_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: must hold sections ({', '.join(Config.model_fields)})"])
    return content


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    place = raw
    for depth, part in enumerate(above):
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            if depth == 0 and part in _SHORT:  # "method: mc" in the file, a key of it set later
                below = place[part] = {_SHORT[part]: below}
            else:
                below = place[part] = {}
        place = below
    if not above and last in _SHORT and not isinstance(value, dict):
        section = raw.get(last)
        raw[last] = {**section} if isinstance(section, dict) else {}
        raw[last][_SHORT[last]] = value
    else:
        place[last] = value


def _expanded(raw: Mapping[str, Any]) -> dict[str, Any]:
    content = dict(raw)
    for section, name in _SHORT.items():
        if isinstance(content.get(section), str):
            content[section] = {name: content[section]}
    return {key: {} if key in SECTIONS and part is None else part for key, part in content.items()}


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())
