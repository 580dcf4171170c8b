"""The configuration of a run: data, backbone, method, training and a seed, read from YAML.

Everything is checked here, before any data is read. Errors are lines of our own that name the
dotted key, what it got and what it takes. Knows nothing of how a run is done.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gflowout import checks
from gflowout.data import clinical
from gflowout.data.catalog import ENTRIES
from gflowout.data.images import IMAGE_SETS
from gflowout.methods import METHODS
from gflowout.pipeline import yamls
from gflowout.training import FitOptions

CLINICAL = ("eicu-demo", "eicu")
SOURCES = (*IMAGE_SETS, *CLINICAL)
"""Data sets that can be trained on by name."""
FILES = (".csv", ".parquet", ".npz")

_TAKEN_OVER = ("name", "data_dir", "valid_fraction", "seed")
_CLINICAL_OPTIONS = tuple(
    name for name in inspect.signature(clinical.load).parameters if name not in _TAKEN_OVER
)
_SHORT = {"data": "source", "backbone": "name", "method": "name"}
"""What a section that is a single word stands for: ``method: mc``."""

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A configuration that cannot be used.

    Attributes:
        problems: One line each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Section):
    """What to learn from.

    Attributes:
        source: Name of a data set, or path of a CSV, Parquet or NPZ file or of a folder with one
            sub-folder of images per class.
        directory: Directory of all data sets; ``None`` as in :func:`gflowout.data.store.root`. A
            file is looked for here, too.
        likelihood: What a label is; ``"auto"`` looks at the labels.
        target: Column of the labels in a table.
        drop: Columns of a table to leave out.
        categorical: Columns of numbers that stand for kinds of things.
        valid: Share of the training data that is kept for validation.
        test: Share of the user's own data that is kept for testing.
        partial: Take what there is if some of CIFAR-10's training files are missing.
        limit: Use this many examples at most for training and validation.
        label_noise: Share of training labels that are drawn anew.
        augment: Crop and mirror training images at random.
        size: Side of the images of a folder, in pixels.
        batch_size: Examples per step.
        seed: Of the split; ``None`` for that of the run.
        options: Of the clinical task, see :func:`gflowout.data.clinical.load`.
    """

    source: str
    directory: str | None = None
    likelihood: Literal["auto", "categorical", "binary", "gaussian"] = "auto"
    target: str | None = None
    drop: list[str] = []
    categorical: list[str] = []
    valid: Annotated[float, Field(gt=0, lt=1)] = 0.1
    test: Share = 0.2
    partial: bool = False
    limit: Annotated[int, Field(ge=10)] | None = None
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    augment: bool = False
    size: Annotated[int, Field(ge=4)] = 32
    batch_size: Count = 100
    seed: Annotated[int, Field(ge=0)] | None = None
    options: dict[str, Any] = {}


class BackboneConfig(_Section):
    """The network.

    Attributes:
        name: ``"auto"`` is ``"resnet18"`` for colour images and ``"mlp"`` for all else.
        hidden: Widths of the hidden layers of ``"mlp"``.
        width: Channels of the first stage of ``"resnet18"``.
        order: Of its convolutions and BatchNorms.
        sites: Names or patterns of the submodules that are masked; ``None`` for the backbone's own.
    """

    name: Literal["auto", "mlp", "resnet18"] = "auto"
    hidden: list[Count] = [300, 100]
    width: Count = 64
    order: Literal["conv-bn", "bn-conv"] = "conv-bn"
    sites: list[str] | None = None


class MethodConfig(_Section):
    """How masks are learned and drawn.

    Attributes:
        name: See ``docs/methods.md``.
        preset: ``"paper"`` for the paper's values of the options.
        options: Those of the method; ``train_size`` is filled in.
    """

    name: str = "gflowout"
    preset: Literal["paper"] | None = None
    options: dict[str, Any] = {}


class Config(_Section):
    """All of a run.

    Attributes:
        data: What to learn from.
        backbone: The network.
        method: How masks are learned and drawn.
        fit: How to train. Its seed is always that of the run.
        seed: Of everything random.
    """

    data: DataConfig
    backbone: BackboneConfig = BackboneConfig()
    method: MethodConfig = MethodConfig()
    fit: FitOptions = FitOptions()
    seed: Annotated[int, Field(ge=0)] = 0

    def model_post_init(self, context: Any) -> None:
        """Give the training the seed of the run."""
        object.__setattr__(self, "fit", dataclasses.replace(self.fit, seed=self.seed))


_SECTIONS: dict[str, Sequence[str]] = {
    "data": list(DataConfig.model_fields),
    "backbone": list(BackboneConfig.model_fields),
    "method": list(MethodConfig.model_fields),
    "fit": [field.name for field in dataclasses.fields(FitOptions) if field.name != "seed"],
}


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
        gflowout.pipeline.config.ConfigError: fit.lrr: there is no such key; did you mean 'fit.lr'?
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
    problems = _unknown(content)
    known = {key: content[key] for key in content if key in Config.model_fields}
    for section, names in _SECTIONS.items():
        if isinstance(known.get(section), dict):
            known[section] = {
                name: known[section][name] for name in names if name in known[section]
            }
    config = None
    try:
        # As JSON, where lists may become tuples although nothing else is converted.
        config = _ADAPTER.validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        problems += [_line(dict(each), content) for each in error.errors()]
    except TypeError as error:
        problems.append(f"fit.{error}")
    if config is not None:
        problems += _check_method(config.method) + _check_data(config.data)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def write(config: Config, path: Path) -> None:
    """Write every value to a YAML file, which :func:`read` reads back equal."""
    from gflowout.training.checkpoints import write_bytes

    text = yamls.text(nested(config)).encode()
    write_bytes(path, lambda stream: stream.write(text))


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


def is_file(source: str) -> bool:
    """Whether a source is a path, not the name of a data set."""
    return source not in ENTRIES and (
        any(mark in source for mark in "/\\~") or Path(source).suffix != "" or Path(source).exists()
    )


_ADAPTER = TypeAdapter(Config)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yamls.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError([f"{path}: cannot be read ({reason})"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not YAML ({_first_line(error)})"]) from error
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
    return {key: {} if key in _SECTIONS and part is None else part for key, part in content.items()}


def _unknown(content: Mapping[str, Any]) -> list[str]:
    everything = [
        *Config.model_fields,
        *(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names),
    ]
    problems = []
    for key, part in content.items():
        if key not in Config.model_fields:
            listed = f"; keys: {', '.join(Config.model_fields)}"
            near = _nearest(str(key), everything) or listed
            problems.append(f"{key}: there is no such key{near}")
        elif key in _SECTIONS and isinstance(part, dict):
            problems += [
                f"{key}.{name}: {_no_key(key, str(name), content, everything)}"
                for name in part
                if name not in _SECTIONS[key]
            ]
    return problems


def _no_key(section: str, name: str, content: Mapping[str, Any], everything: Sequence[str]) -> str:
    if section == "fit" and name == "seed":
        return "there is one seed for all: set seed"
    listed = f"; keys of {section}: {', '.join(_SECTIONS[section])}"
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


def _line(error: dict[str, Any], content: Mapping[str, Any]) -> str:
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


def _check_method(method: MethodConfig) -> list[str]:
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


def _check_data(data: DataConfig) -> list[str]:
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
            problems.append("data.target is missing: the column of the labels")
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


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())
