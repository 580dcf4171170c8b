"""What classifier and regressor have in common: parameters, fitting, drawing.

Parameters are stored as given and checked in ``fit``, as scikit-learn requires.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gflowout.core import checks
from gflowout.core.likelihoods import Likelihood
from gflowout.core.predictive import Predictive
from gflowout.core.sites import INPUT
from gflowout.core.units import Units
from gflowout.integrations.sklearn import tabular
from gflowout.integrations.sklearn.chains import Chain, Plan, pooled, progress, train, weigh
from gflowout.integrations.sklearn.features import Selecting, is_list, units_of
from gflowout.integrations.sklearn.recipes import (
    FEATURES,
    HIDDEN,
    HIDDEN_KEEP,
    ROWS,
    VALID_ROWS,
    VALID_SAMPLES,
    Recipe,
    chain_options,
)
from gflowout.integrations.sklearn.tabular import Floats, Scale, Table
from gflowout.methods import METHODS
from gflowout.training.options import FitOptions

AUTO = "auto"


@dataclass(eq=False, repr=False)
class Estimator(Selecting, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators.

    A dataclass, so that the parameters of both estimators are listed once: scikit-learn reads them
    from the signature of ``__init__``, which is generated and only assigns them.
    """

    method: str = AUTO
    _: KW_ONLY
    hidden: Any = None
    mask_inputs: bool = False
    mask_hidden: bool | str = AUTO
    options: Mapping[str, Any] | None = None
    samples: int | None = None
    chains: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    generator_lr: float | None = None
    weight_decay: float | None = None
    validation_fraction: float | None = None
    patience: int | None = None
    standardize: bool = True
    groups: Any = None
    always: Any = None
    keep: Any = None
    threshold: float = 0.5
    device: str = "cpu"
    random_state: Any = None
    verbose: bool = False

    _classes: ClassVar[bool]

    def predictive(self, X: Any) -> Predictive:  # noqa: N803
        """All samples of the prediction, as :class:`gflowout.Predictive`.

        Args:
            X: [rows, features].

        Returns:
            Samples and uncertainty scores, as tensors. The draws follow from ``random_state``: the
            same rows get the same answer, alone or among others.
        """
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        samples = self._recipe().samples
        return pooled(self.chains_, self.chain_weights_, self._scale.apply(x), samples, self._seed)

    def _fit(
        self, x: Floats, table: Table, likelihood: Callable[[], Likelihood], outputs: int
    ) -> None:
        """Train the chains on distinct rows."""
        recipe = self._recipe()
        if hasattr(self, "inclusion_"):
            del self.inclusion_  # of an earlier fit
        _check_device(self.device)
        checks.boolean("standardize", self.standardize)
        checks.boolean("verbose", self.verbose)
        checks.number("threshold", self.threshold, low=0, high=1)
        rng = np.random.RandomState(check_random_state(self.random_state).randint(2**31 - 1))
        self._seed = int(rng.randint(2**31 - 1))
        self._scale = Scale.none(x.shape[1])
        self._target_scale = Scale.none(table.y.shape[1])
        if self.standardize:
            self._scale = Scale.of(table.x, table.weight)
            if not self._classes:
                self._target_scale = Scale.of(table.y, table.weight)
        scaled = Table(self._scale.apply(table.x), self._target_scale.apply(table.y), table.weight)
        chains: list[Chain] = []
        with progress(recipe.chains, self.verbose) as reporter:
            for held_out in self._validation_rows(table, recipe, rng):
                rows = scaled.take(np.nonzero(~held_out)[0])
                valid = scaled.take(np.nonzero(held_out)[0]) if held_out.any() else None
                number = len(chains)
                plan = self._plan(recipe, number, rows, likelihood, outputs, rng)
                chains.append(train(plan, rows, valid, reporter(number)))
        self.chains_ = chains
        self.chain_weights_ = weigh(np.array([chain.evidence for chain in chains]), recipe.temper)
        self.history_ = [chain.history for chain in chains]
        self.n_iter_ = max(map(len, self.history_))
        if self.mask_inputs:
            self._warn_blind(recipe.method)
            self.inclusion_ = self._inclusion(scaled)

    def _recipe(self) -> Recipe:
        """The recipe for what is masked, with the values of the arguments that are not ``None``."""
        checks.boolean("mask_inputs", self.mask_inputs)
        recipe = HIDDEN
        if self.mask_inputs:
            recipe = ROWS if self.method == ROWS.method else FEATURES
        given: dict[str, Any] = {}
        if self.method != AUTO:
            given["method"] = checks.choice("method", self.method, [AUTO, *METHODS])
            if self.method != recipe.method:  # whose prior and generators these are made for
                given |= {"grid": (), "options": {}}
        for name in ("samples", "chains", "epochs", "batch_size", "patience"):
            if getattr(self, name) is not None:
                given[name] = checks.integer(name, getattr(self, name), low=1)
        if self.epochs is not None:
            given["steps"] = 0
        for name in ("lr", "generator_lr"):
            if getattr(self, name) is not None:
                given[name] = checks.number(name, getattr(self, name), low=0, open_low=True)
        if self.weight_decay is not None:
            given["weight_decay"] = checks.number("weight_decay", self.weight_decay, low=0)
        if self.validation_fraction is not None:
            given["validation"] = checks.number(
                "validation_fraction", self.validation_fraction, low=0, high=0.5
            )
        if self.hidden is not None:
            if not is_list(self.hidden):
                raise TypeError(f"hidden must be a list of widths, got {self.hidden!r}")
            widths = (checks.integer("hidden", width, low=1) for width in self.hidden)
            given["hidden"] = tuple(widths)
        return dataclasses.replace(recipe, **given)

    def _validation_rows(
        self, table: Table, recipe: Recipe, rng: np.random.RandomState
    ) -> Iterator[NDArray[np.bool_]]:
        """Mask of the validation rows of each chain, [rows]; empty where there are few rows."""
        folds = round(1 / recipe.validation) if recipe.validation else 0
        validated = folds > 0 and len(table) // folds >= VALID_ROWS
        turn, fold = 0, np.full(len(table), -1)
        for number in range(recipe.chains):
            if validated and (number == 0 or (recipe.rotate and number % folds == 0)):
                fold = tabular.folds(table.y, folds, rng, self._classes)
            turn = number % folds if validated and recipe.rotate else 0
            yield fold == turn

    def _plan(
        self,
        recipe: Recipe,
        number: int,
        rows: Table,
        likelihood: Callable[[], Likelihood],
        outputs: int,
        rng: np.random.RandomState,
    ) -> Plan:
        if self.options is not None and not isinstance(self.options, Mapping):
            raise TypeError(f"options must be a dict or None, got {self.options!r}")
        known = METHODS[recipe.method].Options.__dataclass_fields__
        own = self.options or {}
        options = {**chain_options(recipe, number, known), **own}
        if "train_size" in known:
            options.setdefault("train_size", max(1, round(rows.total)))
        # A user who chooses a fixed prior, or masks hidden units too, gets the prior unchanged.
        fixed = {"prior_keep", "sparsity"} if recipe.grid else {"sparsity"}
        plain = "sparsity" not in known or fixed & set(own)
        sparsity = 0.0 if plain or self._hidden_sites(recipe) else recipe.sparsity
        return Plan(
            recipe=recipe,
            sites=self._sites(recipe, rows.x.shape[1], options, sparsity if recipe.grid else 0.0),
            options=options,
            likelihood=likelihood,
            outputs=outputs,
            fit=FitOptions(
                epochs=recipe.epochs,
                lr=recipe.lr,
                generator_lr=recipe.generator_lr,
                weight_decay=recipe.weight_decay,
                patience=recipe.patience,
                min_delta=recipe.tolerance,
                valid_samples=VALID_SAMPLES,
                seed=int(rng.randint(2**31 - 1)),
            ),
            sparsity=sparsity,
            device=self.device,
        )

    def _hidden_sites(self, recipe: Recipe) -> list[str]:
        masked = self.mask_hidden
        if masked != AUTO and not isinstance(masked, bool):
            raise TypeError(f"mask_hidden must be True, False or 'auto', got {masked!r}")
        masked = not self.mask_inputs if masked == AUTO else masked
        return [f"hidden.{layer}.act" for layer in range(len(recipe.hidden))] if masked else []

    def _sites(
        self, recipe: Recipe, features: int, options: Mapping[str, Any], sparsity: float
    ) -> Any:
        """Sites for :func:`gflowout.wrap`; ``sparsity`` is what the prior charges in the end."""
        method = METHODS[recipe.method]
        sites: dict[str, Any] = {}
        if self.mask_inputs:
            names = getattr(self, "feature_names_in_", None)
            prior_keep = options.get("prior_keep", getattr(method.Options, "prior_keep", None))
            sites[INPUT] = units_of(
                self.groups, self.always, self.keep, None if names is None else list(names),
                features, prior_keep, sparsity,
            )  # fmt: skip
        else:
            for name in ("groups", "always", "keep"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is about masked inputs: it needs mask_inputs=True")
        sparse = self.mask_inputs and method.keep_rates
        for name in self._hidden_sites(recipe):
            sites[name] = Units(keep=HIDDEN_KEEP) if sparse else None
        if not sites and not method.deterministic:
            raise ValueError(
                f"method {recipe.method!r} needs something to mask: take mask_inputs=True, or "
                f"mask_hidden=True with hidden layers (got hidden={self.hidden!r}, "
                f"mask_hidden={self.mask_hidden!r})"
            )
        return sites or ()


def _check_device(name: Any) -> None:
    try:
        kind = torch.device(name).type
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda', got {name!r}") from None
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if kind in backends and not backends[kind].is_available():
        raise ValueError(
            f"device is {name!r}, but PyTorch finds no such device here: take device='cpu', or "
            "install a PyTorch that is built for it"
        )
