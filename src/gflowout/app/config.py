"""The configuration of a run: read from YAML, checked before any data is read, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gflowout.app import sections, yamls
from gflowout.app.sections import (
    CLINICAL,
    SECTIONS,
    SOURCES,
    BackboneConfig,
    Config,
    DataConfig,
    MethodConfig,
    is_file,
)
from gflowout.app.yamls import ConfigError, read_yaml
from gflowout.core.atomic_io import write_text

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
    "read_yaml",
    "with_changes",
    "write",
]

_ADAPTER = TypeAdapter(Config)


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
        gflowout.app.yamls.ConfigError: fit.lrr: there is no such key; did you mean
        'fit.lr'?
    """
    content = (None if path is None else read_yaml(path)) or {}
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: must hold sections ({', '.join(Config.model_fields)})"])
    return build(yamls.changed(content, yamls.parse_overrides(overrides)))


def build(raw: Mapping[str, Any]) -> Config:
    """Check nested sections and make a configuration of them.

    Raises:
        ConfigError: With all problems at once.
    """
    content: dict[str, Any] = {"data": {}, **raw}
    for section in SECTIONS:
        if isinstance(content.get(section), str) and section in yamls.SHORT:
            content[section] = {yamls.SHORT[section]: content[section]}
        elif section in content and content[section] is None:
            content[section] = {}
    problems = sections.unknown_keys(content)
    accepted = {key: content[key] for key in content if key in Config.model_fields}
    for section, names in SECTIONS.items():
        if isinstance(accepted.get(section), dict):
            values = accepted[section]
            accepted[section] = {name: values[name] for name in names if name in values}
    config = None
    try:
        # As JSON, where lists may become tuples although nothing else is converted.
        config = _ADAPTER.validate_json(json.dumps(accepted), strict=True)
    except ValidationError as error:
        problems += [sections.error_line(dict(details)) for details in error.errors()]
    except TypeError as error:
        problems.append(f"fit.{error}")
    if config is not None:
        problems += sections.method_problems(config.method) + sections.data_problems(config.data)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def write(config: Config, path: Path) -> None:
    """Write every value to a YAML file, which :func:`read` reads back equal."""
    write_text(path, yamls.text(nested(config)))


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
    return yamls.flatten(nested(config))


def from_flat(values: Mapping[str, Any]) -> Config:
    """The configuration of :func:`flat`; keys that are left out have their defaults."""
    return build(yamls.changed({}, values))


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration with other values for some dotted keys, checked again.

    Examples:
        >>> config = read(None, ["data=mnist"])
        >>> with_changes(config, {"fit.lr": 0.01, "method.options.beta": 0.5}).fit.lr
        0.01
    """
    return build(yamls.changed(nested(config), changes))
