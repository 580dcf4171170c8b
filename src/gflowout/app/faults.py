"""What is wrong with a configuration, one line each: the dotted key, what it got, what it takes."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gflowout.app.sections import (
    CLINICAL,
    SECTIONS,
    SOURCES,
    Config,
    DataConfig,
    MethodConfig,
    is_file,
)
from gflowout.core import checks
from gflowout.data import clinical
from gflowout.data.catalog import ENTRIES
from gflowout.methods import METHODS

_TAKEN_OVER = ("name", "data_dir", "valid_fraction", "seed")
_CLINICAL_OPTIONS = tuple(
    name for name in inspect.signature(clinical.load).parameters if name not in _TAKEN_OVER
)


def unknown_keys(content: Mapping[str, Any]) -> list[str]:
    """One line for each key that there is not, with the nearest that there is."""
    everything = [
        *Config.model_fields,
        *(f"{section}.{name}" for section, names in SECTIONS.items() for name in names),
    ]
    problems = []
    for key, part in content.items():
        if key not in Config.model_fields:
            listed = f"; keys: {', '.join(Config.model_fields)}"
            near = _nearest(str(key), everything) or listed
            problems.append(f"{key}: there is no such key{near}")
        elif key in SECTIONS and isinstance(part, dict):
            problems += [
                f"{key}.{name}: {_no_key(key, str(name), content, everything)}"
                for name in part
                if name not in SECTIONS[key]
            ]
    return problems


def _no_key(section: str, name: str, content: Mapping[str, Any], everything: Sequence[str]) -> str:
    if section == "fit" and name == "seed":
        return "there is one seed for all: set seed"
    listed = f"; keys of {section}: {', '.join(SECTIONS[section])}"
    if section == "method":
        method = METHODS.get(str(content["method"].get("name", "gflowout")))
        if method is not None and name in [f.name for f in dataclasses.fields(method.Options)]:
            return f"there is no such key; did you mean 'method.options.{name}'?"
    return f"there is no such key{_nearest(f'{section}.{name}', everything) or listed}"


def _nearest(key: str, everything: Sequence[str]) -> str:
    """The nearest key by its last part: of the same section first, then of any."""
    section, _, name = key.rpartition(".")
    last = {each.rpartition(".")[2]: each for each in reversed(everything)}
    own = {part: each for part, each in last.items() if each.rpartition(".")[0] == section}
    for known in ({name: last[name]} if name in last else {}, own, last):
        found = difflib.get_close_matches(name, known, n=1)
        if found:
            return f"; did you mean {known[found[0]]!r}?"
    return ""


_TAKES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "dataclass_type": "keys with values",
    "model_attributes_type": "keys with values",
}
_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than_equal": lambda context: f"at least {context['ge']:g}",
    "greater_than": lambda context: f"above {context['gt']:g}",
    "less_than_equal": lambda context: f"at most {context['le']:g}",
    "less_than": lambda context: f"below {context['lt']:g}",
}


def line(error: dict[str, Any], content: Mapping[str, Any]) -> str:
    """One line for a problem that pydantic found."""
    key = ".".join(str(part) for part in error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        if key == "data.source":
            return (
                f"data.source is missing: the name of a data set ({', '.join(SOURCES)}), or the "
                "path of a CSV, Parquet or NPZ file or of a folder of images"
            )
        return f"{key} is missing"
    got = f"got {_shown(error['input'])}"
    if kind == "value_error":  # from the checks of FitOptions, which know the last part only
        return f"{key}.{context['error']}"
    if kind == "literal_error":
        allowed = str(context["expected"]).replace("' or '", "', '")
        near = checks.suggest(error["input"], [name.strip("'") for name in allowed.split(", ")])
        return f"{key} must be one of {allowed}, {got}{near}"
    if kind in _BOUNDS:
        return f"{key} must be {_BOUNDS[kind](context)}, {got}"
    return f"{key} must be {_TAKES.get(kind, error['msg'])}, {got}"


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict | list | bool | None) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def method_faults(method: MethodConfig) -> list[str]:
    """What is wrong with the options of a method, asked of the method itself."""
    if method.name not in METHODS:
        try:
            checks.choice("method.name", method.name, METHODS)
        except ValueError as error:
            return [str(error)]
    try:
        METHODS[method.name].Options.build(method.name, method.preset, dict(method.options))
    except (TypeError, ValueError) as error:
        return [_option_line("method.options", str(error), method.options)]
    return []


def data_faults(data: DataConfig) -> list[str]:
    """What can be seen to be wrong with a data section before any data is read."""
    problems = []
    source = data.source
    if source not in SOURCES:
        if source in ENTRIES:
            problems.append(
                f"data.source: {source!r} cannot be trained on from a configuration; takes "
                f"{', '.join(SOURCES)}, or a path"
            )
        elif not is_file(source):
            problems.append(
                f"data.source must be one of {', '.join(SOURCES)}, or the path of a file or "
                f"folder that is there, got {source!r}{checks.suggest(source, SOURCES)}"
            )
    if source in CLINICAL:
        for name in data.options:
            if name not in _CLINICAL_OPTIONS:
                problems.append(
                    f"data.options.{name}: there is no such option; options of {source}: "
                    f"{', '.join(_CLINICAL_OPTIONS)}{checks.suggest(name, _CLINICAL_OPTIONS)}"
                )
    elif data.options:
        problems.append(f"data.options is for {', '.join(CLINICAL)}, got source {source!r}")
    if is_file(source) and data.valid + data.test >= 1:
        problems.append(
            "data.valid and data.test must leave something to train on, got "
            f"{data.valid:g} and {data.test:g}"
        )
    tables = (".csv", ".parquet")
    if Path(source).suffix.lower() in tables and source not in ENTRIES:
        if data.target is None:
            places = (Path(source), Path(data.directory or ".") / source)
            there = any(place.expanduser().exists() for place in places)
            problems.append(
                "data.target is missing: the column of the labels; --set data.target=NAME"
                if there
                else f"{source}: no such file or folder"
            )
    else:
        problems += [
            f"data.{name} is for tables (CSV, Parquet), got source {source!r}"
            for name in ("target", "drop", "categorical")
            if getattr(data, name)
        ]
    return problems


def _option_line(prefix: str, message: str, options: Mapping[str, Any]) -> str:
    named = any(message.startswith(f"{name} ") for name in options)
    return f"{prefix}.{message}" if named else f"{prefix}: {message}"
