"""The sections of a configuration: their keys, types and defaults. Reading them is elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gflowout.data.catalog import ENTRIES
from gflowout.data.images import IMAGE_SETS
from gflowout.training import FitOptions

CLINICAL = ("eicu-demo", "eicu")
SOURCES = (*IMAGE_SETS, *CLINICAL)
"""Data sets that can be trained on by name."""
FILES = (".csv", ".parquet", ".npz")

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
