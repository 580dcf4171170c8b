"""Estimators as selectors of features: what their masks of the inputs say.

Knows of an estimator its chains, their weights and its seed, all set by ``fit``; not how they came
about.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from gflowout.core import checks
from gflowout.core.inclusion import Inclusion
from gflowout.integrations.sklearn.chains import Chain
from gflowout.integrations.sklearn.features import input_masks
from gflowout.integrations.sklearn.recipes import (
    BLIND,
    INCLUSION_CELLS,
    INCLUSION_ROWS,
    INCLUSION_SAMPLES,
)
from gflowout.integrations.sklearn.tabular import Floats, Scale, Table


def _masks_inputs(estimator: Any) -> bool:
    if estimator.mask_inputs:
        return True
    raise AttributeError(f"{type(estimator).__name__} selects features with mask_inputs=True only")


class Selecting(SelectorMixin):  # type: ignore[misc]
    """What estimators have with ``mask_inputs=True`` only."""

    inclusion_: Inclusion
    chains_: list[Chain]
    chain_weights_: Floats
    mask_inputs: bool
    options: Any
    threshold: float
    _scale: Scale
    _seed: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not self.mask_inputs:
            tags.transformer_tags = None
        return tags

    def inclusion(self, X: Any, samples: int = 100) -> Floats:  # noqa: N803
        """How probable it is that each feature is used, row by row.

        Rows differ for methods whose masks depend on them: ``"gflowout"``, ``"contextual"`` and
        ``"combined"``.

        Args:
            X: [rows, features].
            samples: Draws per chain.

        Returns:
            [rows, features].
        """
        check_is_fitted(self, "inclusion_")
        x = self._scale.apply(validate_data(self, X, dtype=np.float64, reset=False))
        found = np.zeros(x.shape)
        for start in range(0, len(x), 256):
            part = slice(start, start + 256)
            masks = self._input_masks(x[part], checks.integer("samples", samples, low=1))
            for weight, mask in zip(self.chain_weights_, masks, strict=True):
                found[part] += weight * mask.double().mean(0).numpy()
        return found

    def get_support(self, indices: bool = False, threshold: float | None = None) -> NDArray[Any]:
        """Features that are probably needed.

        Args:
            indices: Return their numbers instead of a mask.
            threshold: Least inclusion probability; that of the estimator if ``None``.
        """
        check_is_fitted(self, "inclusion_")
        least = self.threshold if threshold is None else threshold
        support: NDArray[Any] = self.inclusion_.support(least).numpy()
        return np.nonzero(support)[0] if indices else support

    def plot_inclusion(self, top: int = 20, level: float = 0.9, ax: Any = None) -> Any:
        """Draw inclusion probabilities with their intervals: ``inclusion_.plot``.

        Args:
            top: How many features at most, the most probable ones.
            level: Of the interval.
            ax: Axes of Matplotlib to draw on; a new figure if not given.

        Returns:
            The axes.
        """
        check_is_fitted(self, "inclusion_")
        return self.inclusion_.plot(top, level, ax)

    @property
    def feature_importances_(self) -> Floats:
        """Inclusion probability of every feature, for scikit-learn's tools."""
        _masks_inputs(self)
        check_is_fitted(self, "inclusion_")
        importances: Floats = self.inclusion_.mean.numpy()
        return importances

    def _get_support_mask(self) -> NDArray[Any]:
        return self.get_support()

    def _inclusion(self, table: Table) -> Inclusion:
        """Masks that the chains draw, for some of the training rows where these matter."""
        chains = [one.model for one in self.chains_]
        share = max(100, INCLUSION_SAMPLES // len(chains))
        count = 1
        if any(one._shared_masks(1, torch.Generator().manual_seed(0)) is None for one in chains):
            least, most = INCLUSION_ROWS
            count = INCLUSION_CELLS // (len(chains) * share * table.x.shape[1])
            count = min(max(count, least), most, len(table))
        rows = table.x[np.linspace(0, len(table) - 1, count).round().astype(int)]
        masks = torch.stack(self._input_masks(rows, share))
        if bool((masks == masks[:, :, :1]).all()):  # drawn for each row, but by nothing of it
            masks = masks[:, :, :1].clone()
        names = _check_feature_names_in(self)
        return Inclusion(masks, torch.from_numpy(self.chain_weights_), [str(one) for one in names])

    def _warn_blind(self, method: str) -> None:
        if method in BLIND and not (method == "concrete" and (self.options or {}).get("per_unit")):
            more = ", or options={'per_unit': True}" if method == "concrete" else ""
            warnings.warn(
                f"masks of method {method!r} learn nothing about single features: inclusion_ says "
                f"nothing about which are needed. Take method='auto'{more}.",
                UserWarning,
                stacklevel=4,
            )

    def _input_masks(self, x: Floats, samples: int) -> list[torch.Tensor]:
        seeds = [self._seed + number for number in range(len(self.chains_))]
        return input_masks(self.chains_, x, samples, seeds)


_SELECTING = ("transform", "inverse_transform", "fit_transform", "get_feature_names_out",
              "set_output", "get_support", "inclusion", "plot_inclusion")  # fmt: skip

# After the class: what scikit-learn wraps inside one loses its condition.
for _name in _SELECTING:
    setattr(Selecting, _name, available_if(_masks_inputs)(getattr(Selecting, _name)))
