"""Labels: what kind they are, and how the likelihood takes them. Knows nothing of inputs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from gflowout.app.config import ConfigError, DataConfig
from gflowout.app.preprocess import Target, level
from gflowout.data.errors import DataError

FEW = 20
"""Whole numbers with at most so many different values are taken for classes."""


def encode_labels(target: Target, labels: pd.Series[Any]) -> Tensor:
    """Labels as the likelihood takes them.

    Raises:
        DataError: If one is not a class of the target, or not a number.
    """
    if target.likelihood == "gaussian":
        try:
            numbers = torch.from_numpy(labels.to_numpy(dtype="float64", copy=True))
        except (TypeError, ValueError) as error:
            raise DataError(f"the labels {target.name!r} must be numbers") from error
        if not bool(numbers.isfinite().all()):
            raise DataError(f"the labels {target.name!r} hold infinity")
        return ((numbers - target.mean) / target.std).float()
    places = {each: place for place, each in enumerate(target.classes)}
    names = [level(value) for value in labels.tolist()]
    odd = next((name for name in names if name not in places), None)
    if odd is not None:
        listed = ", ".join(target.classes[:12]) + (", ..." if len(places) > 12 else "")
        raise DataError(f"the label {odd!r} is none of the classes of the model: {listed}")
    codes = torch.tensor([places[name] for name in names])
    return codes.float() if target.likelihood == "binary" else codes


def likelihood_of(wanted: str, name: str, labels: pd.Series[Any]) -> str:
    """What the labels are: given, or told from their type and number.

    Args:
        wanted: A likelihood, or ``"auto"``.
        name: Of the labels.
        labels: All of them.

    Raises:
        ConfigError: If the labels are not what is wanted.
        DataError: If nearly every label is a class of its own.
    """
    distinct = labels.nunique()
    number = pd.api.types.is_numeric_dtype(labels) and not pd.api.types.is_bool_dtype(labels)
    if wanted == "auto":
        whole = number and bool((labels.to_numpy(dtype="float64") % 1 == 0).all())
        if number and not (whole and distinct <= FEW):
            return "gaussian"
        wanted = "binary" if distinct == 2 else "categorical"
    if wanted == "gaussian":
        if not number:
            raise ConfigError([f"data.likelihood is gaussian, but {name!r} does not hold numbers"])
        return wanted
    if distinct < 2 or (wanted == "binary" and distinct != 2):
        takes = "two classes" if wanted == "binary" else "two classes at least"
        raise ConfigError([f"data.likelihood {wanted} takes {takes}, {name!r} has {distinct}"])
    if 2 * distinct > len(labels):
        raise DataError(
            f"{name!r} has {distinct:,} different values in {len(labels):,} rows, too many to be "
            "classes"
        )
    return wanted


def check_likelihood(data: DataConfig, *allowed: str) -> None:
    """Refuse a section that names another likelihood than its source has.

    Raises:
        ConfigError: If so.
    """
    if data.likelihood not in ("auto", *allowed):
        raise ConfigError(
            [f"data.likelihood of {data.source!r} is {' or '.join(allowed)}, got {data.likelihood}"]
        )
