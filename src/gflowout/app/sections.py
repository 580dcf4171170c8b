"""The sections of a configuration: keys, types, defaults, and a line for everything wrong."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gflowout.core import checks
from gflowout.data import clinical
from gflowout.data.images import IMAGE_SETS
from gflowout.data.store import ENTRIES
from gflowout.methods import METHODS
from gflowout.training import FitOptions

CLINICAL = ("eicu-demo", "eicu")
SOURCES = (*IMAGE_SETS, *CLINICAL)
"""Data sets that can be trained on by name."""

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


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
        name: See ``docs/reference/methods.md``.
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


SECTIONS: dict[str, Sequence[str]] = {
    "data": list(DataConfig.model_fields),
    "backbone": list(BackboneConfig.model_fields),
    "method": list(MethodConfig.model_fields),
    "fit": [field.name for field in dataclasses.fields(FitOptions) if field.name != "seed"],
}
"""Keys of each section."""


def is_file(source: str) -> bool:
    """Whether a source is a path, not the name of a data set."""
    return source not in ENTRIES and (
        any(mark in source for mark in "/\\~") or Path(source).suffix != "" or Path(source).exists()
    )


_ALL_KEYS = [
    *Config.model_fields,
    *(f"{section}.{name}" for section, names in SECTIONS.items() for name in names),
]
_CLINICAL_OPTIONS = tuple(
    name
    for name in inspect.signature(clinical.load).parameters
    if name not in ("name", "data_dir", "valid_fraction", "seed")  # these come from other keys
)


def unknown_keys(content: Mapping[str, Any]) -> list[str]:
    """One line for each key that there is not, with the nearest that there is."""
    problems = []
    for key, part in content.items():
        if key not in Config.model_fields:
            near = _nearest(str(key)) or f"; keys: {', '.join(Config.model_fields)}"
            problems.append(f"{key}: there is no such key{near}")
        elif key in SECTIONS and isinstance(part, dict):
            unknown = [str(name) for name in part if name not in SECTIONS[key]]
            problems += [f"{key}.{name}: {_no_key(key, name, content)}" for name in unknown]
    return problems


def _no_key(section: str, name: str, content: Mapping[str, Any]) -> str:
    if section == "fit" and name == "seed":
        return "there is one seed for all: set seed"
    near = _nearest(f"{section}.{name}")
    if section == "method":
        method = METHODS.get(str(content["method"].get("name", "gflowout")))
        if method is not None and name in [f.name for f in dataclasses.fields(method.Options)]:
            near = f"; did you mean 'method.options.{name}'?"
    listed = f"; keys of {section}: {', '.join(SECTIONS[section])}"
    return f"there is no such key{near or listed}"


def _nearest(key: str) -> str:
    """The nearest key by its last part: the same name first, then its own section, then any."""
    section, _, name = key.rpartition(".")
    by_name = {key.rpartition(".")[2]: key for key in reversed(_ALL_KEYS)}
    own = {part: key for part, key in by_name.items() if key.rpartition(".")[0] == section}
    for keys in ({name: by_name[name]} if name in by_name else {}, own, by_name):
        near = difflib.get_close_matches(name, keys, n=1)
        if near:
            return f"; did you mean {keys[near[0]]!r}?"
    return ""


_EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float"), "an integer"),
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "dataclass_type", "model_attributes_type"), "keys with values"
    ),
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def error_line(error: dict[str, Any]) -> str:
    """One line for an error of pydantic."""
    key = ".".join(str(part) for part in error["loc"])
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "missing":
        if key == "data.source":
            return (
                f"data.source is missing: the name of a data set ({', '.join(SOURCES)}), or the "
                "path of a CSV, Parquet or NPZ file or of a folder of images"
            )
        return f"{key} is missing"
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


def method_problems(method: MethodConfig) -> list[str]:
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


def data_problems(data: DataConfig) -> list[str]:
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
    if Path(source).suffix.lower() not in (".csv", ".parquet") or source in ENTRIES:
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
