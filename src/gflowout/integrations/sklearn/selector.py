"""Feature selection by estimators that mask their inputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from gflowout.core import checks
from gflowout.core.inclusion import Inclusion
from gflowout.core.sites import INPUT
from gflowout.integrations.sklearn.chains import Chain, predict
from gflowout.integrations.sklearn.controls import discoveries
from gflowout.integrations.sklearn.parameters import Parameters
from gflowout.integrations.sklearn.tabular import Floats, Ints, Scale, Table

INCLUSION_SAMPLES = 2000  # masks of all chains together that inclusion probabilities are read from
INCLUSION_ROWS = 20, 200  # least and most rows that they are drawn for, if they depend on the row
INCLUSION_CELLS = 10**7  # entries of all masks together, beyond which rows are fewer
BLIND = frozenset({"concrete", "masksembles", "mc", "modes", "none", "variational"})
"""Methods whose masks learn nothing about single units; concrete dropout does with ``per_unit``."""


class Selector(SelectorMixin, Parameters):  # type: ignore[misc]
    """Selects the features that are probably needed, from masks on the inputs."""

    # Set by ``fit``.
    chains_: list[Chain]
    chain_weights_: Floats
    inclusion_: Inclusion
    p_values_: Floats | None
    _seed: int
    _scale: Scale
    _unit: Ints  # unit of each feature, -1 for those that stay

    def transform(self, X: Any) -> Any:  # noqa: N803
        """The selected features of a table.

        Args:
            X: [rows, features], as for ``fit``.
        """
        check_is_fitted(self)
        if self._encoder is None:
            return super().transform(X)
        self._numbers(X)  # for its checks
        return self._transform(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not self.mask_inputs:
            tags.transformer_tags = None
        return tags

    def inclusion(self, X: Any, samples: int = 100) -> Floats:  # noqa: N803
        """How probable it is that each feature is used, row by row, [rows, features].

        Rows differ for methods whose masks depend on them: ``"gflowout"``, ``"contextual"`` and
        ``"combined"``.

        Args:
            X: [rows, features].
            samples: Draws per chain.
        """
        check_is_fitted(self, "inclusion_")
        x = self._scale.apply(self._numbers(X))
        if self.p_values_ is not None:  # one answer for all rows
            return np.tile(self.inclusion_.mean.numpy(), (len(x), 1))
        probabilities = np.zeros((len(x), self.n_features_in_))
        for start in range(0, len(x), 256):
            rows = slice(start, start + 256)
            masks = self._input_masks(x[rows], checks.integer("samples", samples, low=1))
            for weight, mask in zip(self.chain_weights_, masks, strict=True):
                probabilities[rows] += weight * mask.double().mean(0).numpy()
        return probabilities

    def get_support(
        self, indices: bool = False, threshold: float | None = None, fdr: float | None = None
    ) -> NDArray[Any]:
        """Features that are probably needed.

        With ``fdr``, those that the procedure of Benjamini and Hochberg finds among ``p_values_``,
        which come from a holdout randomization test: in rows that a chain was not trained on, a
        feature is replaced by draws given the other features, from a Gaussian copula. The expected
        share of false features among them is at most ``fdr`` if the copula is right and the
        p-values are independent or positively dependent. It holds approximately: the copula is
        estimated, and the folds share training rows and also decide when training stops. False is
        a feature that says nothing about the target beyond all others.

        Args:
            indices: Return their numbers instead of a mask.
            threshold: Least inclusion probability; that of the estimator if ``None``, with what
                ``if_empty`` says where no feature reaches it.
            fdr: False discovery rate, instead of a threshold.
        """
        check_is_fitted(self, "inclusion_")
        if fdr is not None:
            rate = checks.number("fdr", fdr, low=0, high=1, open_low=True)
            if self.p_values_ is None:
                raise ValueError(
                    "fdr needs p-values from held-out rows: fit with method='auto' and with a "
                    f"validation_fraction of enough rows, got method={self.method!r}"
                )
            if threshold is not None:
                raise ValueError(f"give threshold or fdr, not both, got {threshold!r} and {fdr!r}")
            support = self._discoveries(rate)
        else:
            least = self.threshold if threshold is None else threshold
            support = self.inclusion_.support(least).numpy()
            if threshold is None and not support.any():
                support = self._if_empty(support)
        return np.nonzero(support)[0] if indices else support

    def _if_empty(self, support: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What is selected where no feature reaches the threshold of the estimator."""
        if self.if_empty == "error":
            highest = float(self.inclusion_.mean.max())
            raise ValueError(
                f"no feature reaches threshold={self.threshold!r}: the highest inclusion "
                f"probability is {highest:.3g}. Lower threshold, or take if_empty='best'."
            )
        if self.if_empty == "best":
            best = self._unit[int(self.inclusion_.mean.argmax())]
            return np.asarray(self._unit == best)
        return support

    def _discoveries(self, rate: float) -> NDArray[np.bool_]:
        """Features of the units that are discovered; features that stay are among them."""
        unit, p = self._unit, self.p_values_
        assert p is not None
        _, first = np.unique(unit[unit >= 0], return_index=True)
        chosen = discoveries(p[unit >= 0][first], rate)
        support = np.ones(len(unit), dtype=bool)
        support[unit >= 0] = chosen[unit[unit >= 0]]
        return support

    def plot_inclusion(self, top: int = 20, level: float = 0.9, ax: Any = None) -> Any:
        """Draw inclusion probabilities with their intervals: :meth:`gflowout.Inclusion.plot`."""
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
        """Inclusion from masks of all chains; if these depend on the row, for some scaled rows."""
        models = [chain.model for chain in self.chains_]
        samples = max(100, INCLUSION_SAMPLES // len(models))
        count = 1
        if any(model._shared_masks(1, torch.Generator()) is None for model in models):
            least, most = INCLUSION_ROWS
            count = INCLUSION_CELLS // (len(models) * samples * table.x.shape[1])
            count = min(max(count, least), most, len(table))
        rows = table.x[np.linspace(0, len(table) - 1, count).round().astype(int)]
        masks = torch.stack(self._input_masks(rows, samples))
        if bool((masks == masks[:, :, :1]).all()):  # drawn per row, but the same for all rows
            masks = masks[:, :, :1].clone()
        names = [str(name) for name in _check_feature_names_in(self)]
        return Inclusion(masks, torch.from_numpy(self.chain_weights_), names)

    def _input_masks(self, x: Floats, samples: int) -> list[torch.Tensor]:
        """Masks of features for scaled rows, [samples, rows, features] of 0 and 1 per chain."""
        result = []
        for number, chain in enumerate(self.chains_):
            sites = chain.model.sites
            index = [site.name for site in sites].index(INPUT)
            generator = torch.Generator().manual_seed(self._seed + number)
            masks = predict(chain.model, x, samples, generator, masks=True).masks
            assert masks is not None
            mask, layout = masks[index].cpu(), sites[index].layout
            if layout is not None:
                mask = layout.widen(mask.flatten(0, 1)).reshape(*mask.shape[:2], -1)
            # Rescaled masks, and gates, have other values than 1.
            result.append((mask[..., self._first] > 0).float())
        return result

    def _warn_blind(self, method: str) -> None:
        if method in BLIND and not (method == "concrete" and (self.options or {}).get("per_unit")):
            more = ", or options={'per_unit': True}" if method == "concrete" else ""
            warnings.warn(
                f"masks of method {method!r} learn nothing about single features: inclusion_ says "
                f"nothing about which are needed. Take method='auto'{more}.",
                UserWarning,
                stacklevel=4,
            )


def _masks_inputs(estimator: Any) -> bool:
    if estimator.mask_inputs:
        return True
    raise AttributeError(f"{type(estimator).__name__} selects features with mask_inputs=True only")


# After the class: methods that scikit-learn wraps inside a class lose their condition.
for _name in ("transform", "inverse_transform", "fit_transform", "get_feature_names_out",
              "set_output", "get_support", "inclusion", "plot_inclusion"):  # fmt: skip
    setattr(Selector, _name, available_if(_masks_inputs)(getattr(Selector, _name)))
