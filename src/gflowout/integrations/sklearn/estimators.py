"""``GFlowOutClassifier`` and ``GFlowOutRegressor``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from gflowout.core import checks
from gflowout.core.disagreement import Disagreement
from gflowout.core.likelihoods import Binary, Categorical, Gaussian
from gflowout.core.predictive import Predictive
from gflowout.decisions.conformal import Intervals, Sets
from gflowout.integrations.sklearn import tabular
from gflowout.integrations.sklearn.base import Estimator, all_or_nothing
from gflowout.integrations.sklearn.tabular import Floats, Table

MOST_REPEATED = 10
"""Mean sample weight above which weights were probably not meant as repetitions of rows."""


@dataclass(eq=False, repr=False)
class GFlowOutClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A classifier with learned masks, which also says how certain its predictions are.

    Defaults of ``None`` arguments depend on what is masked: see ``docs/guides/tables.md``.
    Features are named by number, or by column name where ``X`` was a DataFrame.

    Args:
        method: Name of a method, such as ``"gflowout"``, ``"id-gflowout"`` or ``"mc"``; ``"auto"``
            is ``"gflowout"``, or ``"id-gflowout"`` with ``mask_inputs``.
        hidden_layer_sizes: Widths of the hidden layers of the networks. (Those of mask generators
            are ``options={"hidden": ...}``.)
        mask_inputs: Learn which features are needed; gives ``inclusion_``, ``get_support`` and
            ``transform``.
        mask_hidden: Mask hidden units; ``"auto"``: unless ``mask_inputs``.
        options: Options of the method, as for :func:`gflowout.wrap`.
        samples: Draws per prediction.
        chains: Networks whose predictions are pooled.
        epochs: Passes over the training rows at most.
        batch_size: Rows per step at most.
        lr: Learning rate of the networks.
        generator_lr: Learning rate of the mask generators.
        weight_decay: Of the networks.
        validation_fraction: Share of rows kept apart for early stopping; 0 for none.
        calibration_fraction: Share of rows kept apart from everything else, for ``predict_set`` and
            ``predict_interval``. They are drawn at random, and count once each whatever their
            ``sample_weight``.
        patience: Epochs without a better validation loss after which training stops.
        standardize: Scale features, and targets of a regression, by the training rows.
        linear_start: Start networks as a sparse linear model; without effect if inputs are masked,
            or with ``disagreement``.
        groups: Lists of features that are needed or not as one, such as one-hot columns.
        always: Features that are always used.
        keep: Prior probability that a feature is needed: one number, one per feature, or a mapping.
        threshold: Inclusion probability from which ``transform`` selects a feature.
        if_empty: What ``transform`` does if no feature reaches it: ``"best"`` selects the most
            probable one, ``"error"`` is an error, ``None`` selects none, with a warning.
        device: PyTorch's name of where to train.
        random_state: Seed, or NumPy's random state.
        verbose: Show a progress bar.
        hidden: Old name of ``hidden_layer_sizes``, with a warning.
        class_weight: ``"balanced"``, or weights by class.
        label_noise: How labels are wrong, as for :class:`gflowout.Categorical`: ``"learned"``, a
            rate, or a matrix with the classes in the order of ``classes_``.
        disagreement: Term that is added to the loss: a :class:`gflowout.Disagreement`.

    Attributes:
        classes_: The classes.
        chains_: The trained networks, with their ``model`` and ``history``.
        chain_weights_: Their weights, which sum to 1.
        inclusion_: With ``mask_inputs``: which features are needed.
        p_values_: With ``mask_inputs``: p-value of each feature on held-out rows, ``None`` if there
            were none or another method was used.
        feature_importances_: With ``mask_inputs``: its probabilities.
        n_iter_: Epochs of the longest training.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = GFlowOutClassifier(random_state=0).fit(X, y)
        >>> clf.score(X, y) > 0.9
        True
        >>> list(clf.predict_uncertainty(X))
        ['entropy', 'expected_entropy', 'mutual_information', 'max_probability']
    """

    _: KW_ONLY
    class_weight: Mapping[Any, float] | str | None = None
    label_noise: Any = None
    disagreement: Disagreement | None = None

    _classes = True

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GFlowOutClassifier:  # noqa: N803
        """Train on rows and their classes.

        Args:
            X: [rows, features], numbers; or a frame of pandas or polars, also with categories,
                strings and missing values.
            y: [rows], of any kind.
            sample_weight: How often each row counts, [rows].
        """
        x, y = self._learned(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weight = _weights(sample_weight, x)
        self.classes_ = np.unique(y[weight > 0])
        if len(self.classes_) < 2:
            raise ValueError(
                "y must hold at least two classes in rows of positive weight, got one class: "
                f"{self.classes_[0]!r}"
            )
        # Rows of weight 0 may have classes of their own; they are dropped.
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        targets = codes[:, None].astype(np.float64)
        apart = self._calibration_split(targets, weight)
        table = tabular.distinct(x[~apart], targets[~apart], weight[~apart])
        if self.class_weight is not None:
            table = self._balanced(table)
        count = len(self.classes_)
        kind = Binary if count == 2 else partial(Categorical, count)
        self._fit(table, partial(kind, label_noise=self.label_noise), self.disagreement)
        if apart.any():
            labels = torch.from_numpy(codes[apart])
            self._calibration = self._predictive(x[apart]), labels.float() if count == 2 else labels
        return self

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probability of every class, [rows, classes]."""
        mean: Floats = self.predictive(X).mean.double().numpy()
        return mean if mean.ndim == 2 else np.stack([1 - mean, mean], 1)

    def predict_log_proba(self, X: Any) -> Floats:  # noqa: N803
        """Logarithms of the probabilities, [rows, classes]."""
        with np.errstate(divide="ignore"):
            logarithms: Floats = np.log(self.predict_proba(X))
        return logarithms

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class, [rows]."""
        probabilities = self.predict_proba(X)  # which raises NotFittedError before classes_ is read
        classes: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return classes

    def predict_set(
        self,
        X: Any,  # noqa: N803
        coverage: float = 0.9,
        method: str = "lac",
        per_class: bool = False,
    ) -> NDArray[np.bool_]:
        """Sets of classes that hold the true one with a probability of ``coverage``.

        Thresholds come from the rows that ``calibration_fraction`` kept apart, by
        :class:`gflowout.conformal.Sets`, which says what is guaranteed.

        Args:
            X: [rows, features].
            coverage: Between 0 and 1.
            method: ``"lac"``, ``"aps"`` or ``"raps"``.
            per_class: Guarantee the coverage for the rows of every class; each then needs rows of
                its own that were kept apart.

        Returns:
            Whether each class is in the set, [rows, classes].
        """
        sets = Sets(coverage, method, per_class).fit(*self._calibrated("predict_set"))
        members: NDArray[np.bool_] = sets(self.predictive(X)).numpy()
        return members

    def predict_uncertainty(self, X: Any) -> dict[str, Floats]:  # noqa: N803
        """Uncertainty of the predictions, in total and by its source.

        Args:
            X: [rows, features].

        Returns:
            ``"entropy"``, in nats, is the sum of ``"expected_entropy"`` (the classes overlap) and
            ``"mutual_information"`` (the drawn networks disagree); ``"max_probability"`` is that
            of the predicted class. ``pandas.DataFrame`` takes it as it is.
        """
        pred = self.predictive(X)
        scores = ("entropy", "expected_entropy", "mutual_information", "max_probability")
        return {score: getattr(pred, score)().double().numpy() for score in scores}

    def _balanced(self, table: Table) -> Table:
        """The rows with weights times those of their classes; the sum does not change."""
        given = self.class_weight
        codes = table.y[:, 0].astype(np.int64)
        sums = np.bincount(codes, weights=table.weight).astype(float)
        if given == "balanced":
            classes = sums.sum() / (len(sums) * sums)
        elif isinstance(given, Mapping):
            unknown = [label for label in given if label not in self.classes_]
            if unknown:
                raise ValueError(
                    f"class_weight names {unknown[0]!r}, which is not among the classes "
                    f"{self.classes_.tolist()}"
                )
            classes = np.array([given.get(label, 1.0) for label in self.classes_.tolist()], float)
            if not (np.isfinite(classes).all() and (classes >= 0).all() and classes.any()):
                raise ValueError(f"class_weight must hold finite weights >= 0, got {given!r}")
        else:
            raise ValueError(f"class_weight must be 'balanced', a dict or None, got {given!r}")
        weight = table.weight * classes[codes]
        weight *= table.weight.sum() / weight.sum()
        return Table(table.x, table.y, weight).take(np.flatnonzero(weight))


class GFlowOutRegressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A regressor with learned masks, which also says how certain its predictions are.

    The noise is normal; its variance, one per target, is learned. Parameters and attributes are
    those of :class:`GFlowOutClassifier`, without ``class_weight`` and ``classes_``.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> reg = GFlowOutRegressor(random_state=0).fit(X, y)
        >>> reg.score(X, y) > 0.4
        True
        >>> mean, std = reg.predict(X, return_std=True)
    """

    _classes = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GFlowOutRegressor:  # noqa: N803
        """Train on rows and their targets.

        Args:
            X: [rows, features], numbers; or a frame of pandas or polars, also with categories,
                strings and missing values.
            y: [rows] or [rows, targets].
            sample_weight: How often each row counts, [rows].
        """
        x, y = self._learned(X, y, multi_output=True, y_numeric=True)
        self._single = y.ndim == 1
        targets = y.reshape(len(y), -1).astype(np.float64)
        weight = _weights(sample_weight, x)
        apart = self._calibration_split(targets, weight)
        table = tabular.distinct(x[~apart], targets[~apart], weight[~apart])
        self._fit(table, partial(Gaussian, targets.shape[1]))
        if apart.any():
            self._calibration = self._predictive(x[apart]), torch.from_numpy(targets[apart])
        return self

    def _predictive(self, x: Floats) -> Predictive:
        """All samples of the prediction, in the units of the targets."""
        scaled = super()._predictive(x)
        means, log_variances = scaled.outputs.double().chunk(2, -1)
        mean = torch.from_numpy(self._target_scale.mean)
        deviation = torch.from_numpy(self._target_scale.deviation)
        outputs = (means * deviation + mean, log_variances + 2 * deviation.log())
        return Predictive(torch.cat(outputs, -1), scaled.likelihood)

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """The mean prediction, in the shape of the targets.

        Args:
            X: [rows, features].
            return_std: Return its standard deviation, too, as a second array.
        """
        pred = self.predictive(X)
        mean = self._shaped(pred.mean)
        return (mean, self._shaped(pred.variance().sqrt())) if return_std else mean

    def predict_interval(
        self,
        X: Any,  # noqa: N803
        coverage: float = 0.9,
        method: str = "spread",
    ) -> tuple[Floats, Floats]:
        """Intervals that hold the true target with a probability of ``coverage``.

        They are fitted to the rows that ``calibration_fraction`` kept apart, by
        :class:`gflowout.conformal.Intervals`, which says what is guaranteed. Of several targets,
        each has its own interval.

        Args:
            X: [rows, features].
            coverage: Between 0 and 1.
            method: ``"spread"``, ``"residual"`` or ``"quantile"``.

        Returns:
            Lower and upper ends, in the shape of the targets.
        """
        intervals = Intervals(coverage, method).fit(*self._calibrated("predict_interval"))
        low, high = intervals(self.predictive(X))
        return self._shaped(low), self._shaped(high)

    def predict_uncertainty(
        self,
        X: Any,  # noqa: N803
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    ) -> dict[str, Floats]:
        """Uncertainty of the predictions, in total and by its source.

        Args:
            X: [rows, features].
            quantiles: Of the predictive distribution.

        Returns:
            ``"std"``, ``"epistemic_std"`` (the drawn networks disagree), ``"aleatoric_std"`` (the
            noise) and, for each quantile, one such as ``"q0.05"``.
        """
        pred = self.predictive(X)
        scores = {
            "std": pred.variance().sqrt(),
            "epistemic_std": pred.epistemic_variance().sqrt(),
            "aleatoric_std": pred.aleatoric_variance().sqrt(),
        }
        for given in quantiles:
            level = checks.number("quantiles", given, low=0, high=1, open_low=True, open_high=True)
            scores[f"q{level:g}"] = pred.quantile(level)
        return {name: self._shaped(score) for name, score in scores.items()}

    def _shaped(self, values: torch.Tensor) -> Floats:
        array: Floats = values.double().numpy()
        return array[:, 0] if self._single else array


def _weights(sample_weight: Any, x: Floats) -> Floats:
    """Weights of the rows, checked."""
    weight: Floats = _check_sample_weight(sample_weight, x, dtype=np.float64)
    if (weight < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weight.min():g}")
    if not (weight > 0).any():
        raise ValueError("sample_weight must be positive for some row, got zeros only")
    if sample_weight is not None and weight.sum() > MOST_REPEATED * len(x):
        warnings.warn(
            f"sample_weight sums to {weight.sum():.3g} for {len(x)} rows, and a row of weight 3 "
            "counts as three rows: divide weights by their mean if they are relative",
            UserWarning,
            stacklevel=3,
        )
    return weight
