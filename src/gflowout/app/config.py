"""The configuration of a run: its keys, read from YAML, and checked before any data is read."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gflowout.app import yamls
from gflowout.app.yamls import ConfigError as ConfigError
from gflowout.app.yamls import read_yaml as read_yaml
from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.data import clinical
from gflowout.data.images import IMAGE_SETS
from gflowout.data.store import ENTRIES
from gflowout.methods import METHODS
from gflowout.training import FitOptions

CLINICAL = ("eicu-demo", "eicu")
SOURCES = (*IMAGE_SETS, *CLINICAL)  # data sets that can be trained on by name
TABLES = (".csv", ".parquet")
# Where a file or option does not set these for a table: train until it stops improving.
TABLE_FIT = {"epochs": 1000, "patience": 50}

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Section):
    """What to learn from."""

    source: str  # name of a data set, or path of a table, an NPZ file or a folder of class folders
    directory: str | None = None  # of all data sets; a file is looked for here, too
    likelihood: Literal["auto", "categorical", "binary", "gaussian"] = "auto"
    target: str | None = None  # column of the labels in a table
    drop: list[str] = []  # columns to leave out
    categorical: list[str] = []  # columns of numbers that are codes of categories
    valid: Annotated[float, Field(gt=0, lt=1)] = 0.1  # share of the training data
    test: Annotated[float, Field(ge=0, lt=1)] = 0.2  # share of the user's own data
    partial: bool = False  # accept that some of CIFAR-10's training files are missing
    limit: Annotated[int, Field(ge=10)] | None = None  # examples for training and validation
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of labels that are drawn anew
    augment: bool = False  # crop and mirror training images at random
    size: Annotated[int, Field(ge=4)] = 32  # side of the images of a folder, in pixels
    batch_size: Count = 100
    seed: Seed | None = None  # of the split; None for that of the run
    options: dict[str, Any] = {}  # of the clinical task, see gflowout.data.clinical.load


class BackboneConfig(_Section):
    """The network; ``"auto"`` is ``"resnet18"`` for colour images and ``"mlp"`` for all else."""

    name: Literal["auto", "mlp", "resnet18"] = "auto"
    hidden: list[Count] = [300, 100]  # widths of the hidden layers of "mlp"
    width: Count = 64  # channels of the first stage of "resnet18"
    order: Literal["conv-bn", "bn-conv"] = "conv-bn"  # of convolutions and BatchNorms
    sites: list[str] | None = None  # names or patterns; None for the backbone's own


class MethodConfig(_Section):
    """How masks are learned and drawn, see ``docs/reference/methods.md``."""

    name: str = "gflowout"
    preset: Literal["paper"] | None = None
    options: dict[str, Any] = {}  # train_size is filled in


class Config(_Section):
    """All of a run."""

    data: DataConfig
    backbone: BackboneConfig = BackboneConfig()
    method: MethodConfig = MethodConfig()
    fit: FitOptions = FitOptions()  # its seed is always that of the run
    seed: Seed = 0

    def model_post_init(self, context: Any) -> None:
        """Give the training the seed of the run."""
        object.__setattr__(self, "fit", dataclasses.replace(self.fit, seed=self.seed))


_SECTIONS: dict[str, Sequence[str]] = {
    "data": list(DataConfig.model_fields),
    "backbone": list(BackboneConfig.model_fields),
    "method": list(MethodConfig.model_fields),
    "fit": [field.name for field in dataclasses.fields(FitOptions) if field.name != "seed"],
}
_ALL_KEYS = [
    *Config.model_fields,
    *(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names),
]
_CLINICAL_OPTIONS = tuple(
    name
    for name in inspect.signature(clinical.load).parameters
    if name not in ("name", "data_dir", "valid_fraction", "seed")  # these come from other keys
)


def read(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, or the defaults; overrides are ``"key.sub=value"``, the last one wins.

    Tables train by :data:`TABLE_FIT` where nothing else is said.

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
    return build(_for_tables(yamls.changed(content, yamls.parse_overrides(overrides))))


def build(raw: Mapping[str, Any]) -> Config:
    """Check nested sections; raise a :class:`ConfigError` with all problems at once."""
    content: dict[str, Any] = {"data": {}, **raw}
    accepted = {key: content[key] for key in content if key in Config.model_fields}
    for section, names in _SECTIONS.items():
        part = content.get(section, {})
        if isinstance(part, str) and section in yamls.SHORT:
            part = {yamls.SHORT[section]: part}
        content[section] = part = {} if part is None else part
        if isinstance(part, dict):
            part = {name: part[name] for name in names if name in part}
        accepted[section] = part
    problems = _unknown_keys(content)
    config = None
    try:
        # As JSON, where lists may become tuples although nothing else is converted.
        config = Config.model_validate_json(json.dumps(accepted), strict=True)
    except ValidationError as error:
        problems += [_error_line(dict(details)) for details in error.errors()]
    except TypeError as error:
        problems.append(f"fit.{error}")
    if config is not None:
        problems += _method_problems(config.method) + _data_problems(config.data)
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
    """A configuration as one value per dotted key."""
    return yamls.flatten(nested(config))


def from_flat(values: Mapping[str, Any]) -> Config:
    """The configuration of :func:`flat`; keys that are left out have their defaults."""
    return build(yamls.changed({}, values))


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration with other values for some dotted keys, checked again."""
    return build(yamls.changed(nested(config), changes))


def is_file(source: str) -> bool:
    """Whether a source is a path, not the name of a data set."""
    return source not in ENTRIES and (
        any(mark in source for mark in "/\\~") or Path(source).suffix != "" or Path(source).exists()
    )


def is_table(source: str) -> bool:
    """Whether a source is a CSV or Parquet file."""
    return source not in ENTRIES and Path(source).suffix.lower() in TABLES


def _for_tables(raw: dict[str, Any]) -> dict[str, Any]:
    """Sections with the defaults of tables, where the source is one."""
    data, fit = raw.get("data"), raw.get("fit") or {}
    source = data.get("source") if isinstance(data, dict) else data
    if isinstance(source, str) and is_table(source) and isinstance(fit, dict):
        return {**raw, "fit": {**TABLE_FIT, **fit}}
    return raw


def _unknown_keys(content: Mapping[str, Any]) -> list[str]:
    """One line for each key that does not exist, with the nearest one that does."""
    keys: list[str] = []
    for key, part in content.items():
        nested = key in _SECTIONS and isinstance(part, dict)
        keys += [f"{key}.{name}" for name in part] if nested else [str(key)]
    return [f"{key}: {_no_such_key(key, content)}" for key in keys if key not in _ALL_KEYS]


def _no_such_key(key: str, content: Mapping[str, Any]) -> str:
    if key == "fit.seed":
        return "there is one seed for all: set seed"
    message = "there is no such key"
    section, _, name = key.rpartition(".")
    if section == "method":
        method = METHODS.get(str(content["method"].get("name", "gflowout")))
        if method is not None and name in method.Options.names():
            return f"{message}; did you mean 'method.options.{name}'?"
    # By the last part of keys: the same name first, then the key's own section, then any.
    by_name = {key.rpartition(".")[2]: key for key in reversed(_ALL_KEYS)}
    own = {part: key for part, key in by_name.items() if key.rpartition(".")[0] == section}
    for keys in ({name: by_name[name]} if name in by_name else {}, own, by_name):
        if near := difflib.get_close_matches(name, keys, n=1):
            return f"{message}; did you mean {keys[near[0]]!r}?"
    if section in _SECTIONS:
        return f"{message}; keys of {section}: {', '.join(_SECTIONS[section])}"
    return f"{message}; keys: {', '.join(Config.model_fields)}"


_EXPECTED = {
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "finite_number": "a finite number", "string_type": "a string", "bool_type": "true or false",
    "list_type": "a list", "tuple_type": "a list", "dict_type": "keys with values",
    "model_type": "keys with values", "model_attributes_type": "keys with values",
    "dataclass_type": "keys with values",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"), "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"), "less_than": ("below", "lt"),
}  # fmt: skip


def _error_line(error: dict[str, Any]) -> str:
    """One line for an error of pydantic."""
    key = ".".join(str(part) for part in error["loc"])
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "missing":  # nothing else has no default
        return (
            f"{key} is missing: the name of a data set ({', '.join(SOURCES)}), or the "
            "path of a CSV, Parquet or NPZ file or of a folder of images"
        )
    if kind == "value_error":  # from the checks of FitOptions, which know the last part only
        return f"{key}.{context['error']}"
    shown = json.dumps(value) if isinstance(value, dict | list | bool | None) else repr(value)
    got = f"got {shown if len(shown) <= 60 else f'{shown[:57]}...'}"
    if kind == "literal_error":
        allowed = str(context["expected"]).replace("' or '", "', '")
        near = checks.suggest(value, [name.strip("'") for name in allowed.split(", ")])
        return f"{key} must be one of {allowed}, {got}{near}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{key} must be {words} {context[bound]:g}, {got}"
    return f"{key} must be {_EXPECTED.get(kind, error['msg'])}, {got}"


def _method_problems(method: MethodConfig) -> list[str]:
    """What is wrong with the options of a method, asked of the method itself."""
    try:
        checks.choice("method.name", method.name, METHODS)
    except ValueError as error:
        return [str(error)]
    try:
        METHODS[method.name].Options.build(method.name, method.preset, dict(method.options))
    except (TypeError, ValueError) as error:
        named = any(str(error).startswith(f"{name} ") for name in method.options)
        return [f"method.options{'.' if named else ': '}{error}"]
    return []


def _data_problems(data: DataConfig) -> list[str]:
    """What can be seen to be wrong with a data section before any data is read."""
    problems = []
    source = data.source
    if source in ENTRIES and source not in SOURCES:
        problems.append(
            f"data.source: {source!r} cannot be trained on from a configuration; takes "
            f"{', '.join(SOURCES)}, or a path"
        )
    elif source not in SOURCES and not is_file(source):
        problems.append(
            f"data.source must be one of {', '.join(SOURCES)}, or the path of a file or "
            f"folder that is there, got {source!r}{checks.suggest(source, SOURCES)}"
        )
    if source in CLINICAL:
        problems += [
            f"data.options.{name}: there is no such option; options of {source}: "
            f"{', '.join(_CLINICAL_OPTIONS)}{checks.suggest(name, _CLINICAL_OPTIONS)}"
            for name in data.options
            if name not in _CLINICAL_OPTIONS
        ]
    elif data.options:
        problems.append(f"data.options is for {', '.join(CLINICAL)}, got source {source!r}")
    if is_file(source) and data.valid + data.test >= 1:
        problems.append(
            "data.valid and data.test must leave something to train on, got "
            f"{data.valid:g} and {data.test:g}"
        )
    if not is_table(source):
        problems += [
            f"data.{name} is for tables (CSV, Parquet), got source {source!r}"
            for name in ("target", "drop", "categorical")
            if getattr(data, name)
        ]
    elif data.target is None:
        places = (Path(source), Path(data.directory or ".") / source)
        problems.append(
            "data.target is missing: the column of the labels; --set data.target=NAME"
            if any(place.expanduser().exists() for place in places)
            else f"{source}: no such file or folder"
        )
    return problems
