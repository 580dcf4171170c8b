"""What classifier and regressor have in common: training their networks, and drawing from them."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from gflowout.core import checks
from gflowout.core.disagreement import Disagreement
from gflowout.core.likelihoods import Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.sites import INPUT
from gflowout.integrations.sklearn import selection, tabular
from gflowout.integrations.sklearn.chains import (
    Chain,
    Plan,
    build_alone,
    fill,
    finished,
    pooled,
    progress_bar,
    report_chains,
    train,
)
from gflowout.integrations.sklearn.controls import p_values
from gflowout.integrations.sklearn.linear import kind_of
from gflowout.integrations.sklearn.recipes import Recipe
from gflowout.integrations.sklearn.selector import Selector
from gflowout.integrations.sklearn.tabular import Floats, Ints, Scale, Table

Fit = TypeVar("Fit", bound=Callable[..., Any])

VALID_ROWS = 5  # validation rows below which there is no point in validating


def all_or_nothing(fit: Fit) -> Fit:
    """Make a failed or interrupted ``fit`` leave the estimator as it was before."""

    @wraps(fit)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(self.__dict__)
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return cast(Fit, guarded)


class Estimator(Selector):
    """Base of the estimators."""

    _classes: bool  # whether labels are classes

    def predictive(self, X: Any) -> Predictive:  # noqa: N803
        """All samples of the prediction for [rows, features], as tensors.

        The draws follow from ``random_state``: the same rows get the same answer, alone or among
        others.
        """
        check_is_fitted(self)
        return self._predictive(self._numbers(X))

    def _predictive(self, x: Floats) -> Predictive:
        samples = self._recipe().samples
        return pooled(self.chains_, self.chain_weights_, self._scale.apply(x), samples, self._seed)

    def _calibration_split(self, targets: Floats, weight: Floats) -> NDArray[np.bool_]:
        """Rows that no network is trained, validated or scaled on, at random, [rows].

        Rows of weight 0 are not among them, nor is one row of every class, so that no class is
        missing from training.
        """
        share = checks.number("calibration_fraction", self.calibration_fraction, low=0, high=0.9)
        held_out = np.zeros(len(targets), dtype=bool)
        if share:
            # A copy, so that the training has the same random numbers with and without.
            seed = check_random_state(copy.copy(self.random_state)).randint(2**31 - 1)
            order = np.random.RandomState([seed, 1]).permutation(np.flatnonzero(weight > 0))
            count = round(share * len(order))
            if self._classes:
                _, firsts = np.unique(targets[order, 0], return_index=True)
                order = np.delete(order, firsts)
            held_out[order[:count]] = True
        return held_out

    def _calibrated(self, method: str) -> tuple[Predictive, torch.Tensor]:
        """Prediction and labels of the rows that were kept apart for calibration."""
        check_is_fitted(self)
        calibration = self.__dict__.get("_calibration")  # older pickles have none
        if calibration is None:
            raise ValueError(
                f"{method} needs rows that the networks were not trained on: fit with, for "
                "instance, calibration_fraction=0.2"
            )
        pred, y = calibration
        return pred, y

    def _fit(
        self,
        table: Table,
        likelihood: Callable[[], Likelihood],
        disagreement: Disagreement | None = None,
    ) -> None:
        """Train the chains on distinct rows."""
        self._check_parameters()
        recipe = self._recipe()
        for name in ("inclusion_", "p_values_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        self._calibration: tuple[Predictive, torch.Tensor] | None = None
        rng = np.random.RandomState(check_random_state(self.random_state).randint(2**31 - 1))
        self._seed = int(rng.randint(2**31 - 1))
        scaled_targets = self.standardize and not self._classes
        self._scale = Scale.of(table.x, table.weight, self.standardize)
        self._target_scale = Scale.of(table.y, table.weight, scaled_targets)
        scaled = Table(self._scale.apply(table.x), self._target_scale.apply(table.y), table.weight)
        plans = partial(Plan, likelihood=likelihood, device=self.device, disagreement=disagreement)
        if recipe.side_by_side:
            self._fit_stacked(scaled, recipe, plans, rng)
        else:
            self._fit_looped(scaled, recipe, plans, rng)
        if len(self.chains_) < recipe.chains:
            warnings.warn(
                f"the fit was interrupted: it has {len(self.chains_)} of {recipe.chains} chains",
                UserWarning,
                stacklevel=4,
            )
        self.history_ = [chain.history for chain in self.chains_]
        self.n_iter_ = max(map(len, self.history_))

    def _fit_looped(
        self, scaled: Table, recipe: Recipe, plans: Callable[..., Plan], rng: np.random.RandomState
    ) -> None:
        """Train chains one after the other."""
        chains: list[Chain] = []
        with progress_bar(recipe.chains, self.verbose) as report:
            for number, held_out in enumerate(self._validation_rows(scaled, recipe, rng)):
                rows = scaled.take(np.nonzero(~held_out)[0])
                valid = scaled.take(np.nonzero(held_out)[0]) if held_out.any() else None
                own, sites = self._chain_settings(recipe, number, rows)
                plan = plans(own, sites, seed=int(rng.randint(2**31 - 1)))
                try:
                    chains.append(train(plan, rows, valid, partial(report, number)))
                except KeyboardInterrupt:
                    if not chains:
                        raise
                    break
        self.chains_ = chains
        # The softmax of tempered validation log-likelihoods; equal weights without validation rows.
        evidence = np.array([chain.evidence for chain in chains])
        if not np.isfinite(evidence).all():
            evidence = np.zeros(len(chains))
        weights = np.exp(recipe.temper * (evidence - evidence.max()))
        self.chain_weights_ = weights / weights.sum()
        if self.mask_inputs:
            self._warn_blind(recipe.method)
            self._unit = self._units_of(chains[0].model)[self._first]
            self.inclusion_ = self._inclusion(scaled)
            self.__dict__["p_values_"] = None

    def _fit_stacked(
        self, scaled: Table, recipe: Recipe, plans: Callable[..., Plan], rng: np.random.RandomState
    ) -> None:
        """Train chains side by side, and test features on the rows that they held out."""
        settings = selection.settings_of(recipe.chains)
        kinds = len(set(settings))
        folds = replace(recipe, chains=-(-recipe.chains // kinds))
        by_fold = list(self._validation_rows(scaled, folds, rng))
        held_out = np.stack([by_fold[chain // kinds] for chain in range(recipe.chains)])
        seed = int(rng.randint(2**31 - 1))
        row = torch.tensor(scaled.x[:1], dtype=torch.float32)
        models = [
            build_alone(plans(*self._chain_settings(recipe, chain, scaled), seed=seed), row)
            for chain in range(recipe.chains)
        ]
        setup = self._setup(recipe, models[0])
        schedule = recipe.schedule(len(scaled), models[0].method.options)
        with progress_bar(recipe.chains, self.verbose) as report:
            result = selection.train(scaled, setup, held_out, schedule, seed, report_chains(report))
        weights, dense = selection.weigh(scaled, result, setup.kind, seed)
        chains = []
        held_out = result.held_out  # of chains that are trained: all, unless interrupted
        for chain, model in enumerate(models[: len(held_out)]):
            fill(model, result.stacks[chain], result.candidates[chain])
            rows = held_out[chain]
            evidence = float(dense[chain, rows] @ scaled.weight[rows]) if rows.any() else math.nan
            history, best = result.histories[chain], result.best_looks[chain]
            chains.append(Chain(finished(model, self.device), history, best, evidence))
        self.chains_, self.chain_weights_ = chains, weights
        self._unit = setup.unit[self._first]
        features = replace(setup, unit=self._unit)
        names = [str(name) for name in _check_feature_names_in(self)]
        if held_out.any() and setup.units:
            tests = selection.test(scaled, setup, result, seed)
            keep = weights @ result.keep(setup.units)
            self.inclusion_ = selection.inclusion(tests, keep, features, names, seed)
            p = np.append(p_values(tests.units), 0.0)  # the last for features that stay
            self.__dict__["p_values_"] = p[self._unit]
        else:
            self.inclusion_ = self._inclusion(scaled)
            self.__dict__["p_values_"] = None

    def _units_of(self, model: MaskedModel) -> Ints:
        """Unit of each column of numbers, -1 for those that stay, [columns]."""
        site = next(site for site in model.sites if site.name == INPUT)
        if site.layout is None:
            return np.arange(site.units)
        return np.array(site.layout.unit)

    def _setup(self, recipe: Recipe, model: MaskedModel) -> selection.Setup:
        """Units, priors and start of the chains, from a network with its sites."""
        site, options = model.sites[0], model.method.options
        unit = self._units_of(model)
        prior = np.full(site.units, np.nan)
        own = self.options or {}
        if self.keep is not None or {"prior_keep", "keep"} & set(own):
            prior = logit(
                np.broadcast_to(site.keep or options.prior_keep, site.units).astype(float)
            )
        kind = kind_of(model.likelihood)
        return selection.Setup(unit, prior, recipe.hidden, own.get("start_keep"), kind)

    def _validation_rows(
        self, table: Table, recipe: Recipe, rng: np.random.RandomState
    ) -> Iterator[NDArray[np.bool_]]:
        """Mask of the validation rows of each chain, [rows]; empty where there are few rows."""
        share = recipe.validation_fraction
        folds = round(1 / share) if share else 0
        validated = folds > 0 and len(table) // folds >= VALID_ROWS
        fold = np.full(len(table), -1)
        for number in range(recipe.chains):
            turn = number % folds if validated and recipe.rotate else 0
            if validated and (number == 0 or (recipe.rotate and turn == 0)):
                fold = tabular.folds(table.y, folds, rng, self._classes)
            yield fold == turn
