"""What classifier and regressor have in common: parameters, fitting, drawing, feature selection.

Parameters are stored as given and checked in ``fit``, as scikit-learn requires.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import (
    _check_feature_names_in,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from gflowout.core import checks
from gflowout.core.disagreement import Disagreement
from gflowout.core.inclusion import Inclusion
from gflowout.core.likelihoods import Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.renamed import renamed
from gflowout.core.sites import INPUT
from gflowout.core.units import Units
from gflowout.integrations.sklearn import selection, tabular
from gflowout.integrations.sklearn.chains import (
    FEATURES,
    HIDDEN,
    LOOPED,
    RANDOM,
    ROWS,
    Chain,
    Plan,
    Recipe,
    build_alone,
    fill,
    finished,
    pooled,
    predict,
    progress_bar,
    report_chains,
    train,
)
from gflowout.integrations.sklearn.controls import discoveries, p_values
from gflowout.integrations.sklearn.features import is_list, units_of
from gflowout.integrations.sklearn.frames import Encoder, is_frame, is_plain
from gflowout.integrations.sklearn.linear import kind_of
from gflowout.integrations.sklearn.tabular import Floats, Ints, Scale, Table
from gflowout.methods import METHODS
from gflowout.methods._shared import DEFAULT_KEEP

Fit = TypeVar("Fit", bound=Callable[..., Any])

AUTO = "auto"
VALID_ROWS = 5  # validation rows below which there is no point in validating
STACKED = frozenset({"beta", "draws", "keep", "prior_keep", "start_keep", "train_size"})
"""Options with which chains are trained side by side."""
HIDDEN_KEEP = 0.5  # prior keep rate of hidden units beside masked inputs, whose prior is sparse
INCLUSION_SAMPLES = 2000  # masks of all chains together that inclusion probabilities are read from
INCLUSION_ROWS = 20, 200  # least and most rows that they are drawn for, if they depend on the row
INCLUSION_CELLS = 10**7  # entries of all masks together, beyond which rows are fewer
BLIND = frozenset({"concrete", "masksembles", "mc", "modes", "none", "variational"})
"""Methods whose masks learn nothing about single units; concrete dropout does with ``per_unit``."""


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


@dataclass(eq=False, repr=False)
class Estimator(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators.

    A dataclass, so that the parameters of both estimators are listed once: scikit-learn reads them
    from the signature of ``__init__``, which is generated and only assigns them.
    """

    method: str = AUTO
    _: KW_ONLY
    hidden_layer_sizes: Any = None
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
    calibration_fraction: float = 0.0
    patience: int | None = None
    standardize: bool = True
    linear_start: bool = True
    groups: Any = None
    always: Any = None
    keep: Any = None
    threshold: float = 0.5
    if_empty: str | None = None
    device: str = "cpu"
    random_state: Any = None
    verbose: bool = False
    hidden: Any = None

    _classes: ClassVar[bool]

    _encoder: ClassVar[Encoder | None] = None  # of a frame that is not plain numbers, set by fit

    if TYPE_CHECKING:
        p_values_: ClassVar[Floats | None]  # set by fit; a field would be a parameter

    def predictive(self, X: Any) -> Predictive:  # noqa: N803
        """All samples of the prediction for [rows, features], as tensors.

        The draws follow from ``random_state``: the same rows get the same answer, alone or among
        others.
        """
        check_is_fitted(self)
        return self._predictive(self._numbers(X))

    def _numbers(self, X: Any) -> Floats:  # noqa: N803
        """The columns of numbers of a table like that of ``fit``, [rows, columns]."""
        encoder = self._encoder
        if encoder is None:
            plain: Floats = validate_data(self, X, dtype=np.float64, reset=False)
            return plain
        if not is_frame(X):
            raise TypeError(
                "X must be a DataFrame with the columns of fit, some of which are not plain "
                f"numbers, got {type(X).__name__}"
            )
        validate_data(self, X, reset=False, skip_check_array=True)
        return encoder.apply(X)

    def _learned(self, X: Any, y: Any, **how: Any) -> tuple[Floats, Any]:  # noqa: N803
        """The columns of numbers of the table that is fitted to, and its checked targets."""
        self.__dict__["_encoder"] = None
        if not is_frame(X) or is_plain(X):
            return cast(tuple[Floats, Any], validate_data(self, X, y, dtype=np.float64, **how))
        validate_data(self, X, y, skip_check_array=True)
        encoder = Encoder.of(X)
        self.__dict__["_encoder"] = encoder
        return cast(tuple[Floats, Any], check_X_y(encoder.apply(X), y, estimator=self, **how))

    @property
    def _first(self) -> Ints:
        """The first column of numbers of every feature, [features]."""
        if self._encoder is None:
            return np.arange(self.n_features_in_)
        return np.unique(self._encoder.source, return_index=True)[1]

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

    def _fit(
        self,
        table: Table,
        likelihood: Callable[[], Likelihood],
        disagreement: Disagreement | None = None,
    ) -> None:
        """Train the chains on distinct rows."""
        self._check_spellings()
        recipe = self._recipe()
        if self.if_empty is not None:
            checks.choice("if_empty", self.if_empty, ("best", "error"))
        for name in ("inclusion_", "p_values_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        self._calibration: tuple[Predictive, torch.Tensor] | None = None
        _check_device(self.device)
        checks.boolean("standardize", self.standardize)
        checks.boolean("verbose", self.verbose)
        checks.number("threshold", self.threshold, low=0, high=1)
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
                chains.append(train(plan, rows, valid, partial(report, number)))
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
        for chain, model in enumerate(models):
            fill(model, result.stacks[chain], result.candidates[chain])
            held = held_out[chain]
            evidence = float(dense[chain, held] @ scaled.weight[held]) if held.any() else math.nan
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

    def _recipe(self) -> Recipe:
        """The recipe for what is masked, with the values of the arguments that are not ``None``."""
        checks.boolean("mask_inputs", self.mask_inputs)
        checks.boolean("linear_start", self.linear_start)
        # Networks that should disagree must not all be one line.
        apart = getattr(self, "disagreement", None) is not None
        recipe = HIDDEN if self.linear_start and not apart else RANDOM
        if self.mask_inputs:
            recipe = ROWS if self.method == ROWS.method else LOOPED
            recipe = FEATURES if self._stackable() else recipe
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
        positive = {"open_low": True}
        bounds: dict[str, dict[str, Any]] = {
            "lr": positive, "generator_lr": positive, "weight_decay": {},
            "validation_fraction": {"high": 0.5},
        }  # fmt: skip
        for name, bound in bounds.items():
            if getattr(self, name) is not None:
                given[name] = checks.number(name, getattr(self, name), low=0, **bound)
        sizes = self.hidden if self.hidden_layer_sizes is None else self.hidden_layer_sizes
        if sizes is not None:
            name = "hidden_layer_sizes"
            if not is_list(sizes):
                raise TypeError(f"{name} must be a list of widths, got {sizes!r}")
            given["hidden"] = tuple(checks.integer(name, width, low=1) for width in sizes)
        return replace(recipe, **given)

    def _stackable(self) -> bool:
        """Whether chains can be trained side by side: with the default method and its options."""
        own = self.options if isinstance(self.options, Mapping) else {}
        terms = (getattr(self, name, None) for name in ("label_noise", "disagreement"))
        return (
            self.method in (AUTO, FEATURES.method)
            and set(own) <= STACKED
            and self.mask_hidden in (AUTO, False)
            and all(term is None for term in terms)
        )

    def _check_spellings(self) -> None:
        """Warn of arguments that have another name now, once per fit."""
        names = ("hidden", "hidden_layer_sizes")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        renamed(given, dict([names]), type(self).__name__)

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

    def _chain_settings(self, recipe: Recipe, number: int, rows: Table) -> tuple[Recipe, Any]:
        """The recipe of one chain, with its own options and sparsity; and its sites."""
        if self.options is not None and not isinstance(self.options, Mapping):
            raise TypeError(f"options must be a dict or None, got {self.options!r}")
        kind = METHODS[recipe.method].Options
        names = kind.__dataclass_fields__
        own = kind.translated(self.options or {}, f"method {recipe.method!r}")
        options = {**recipe.chain_options(number, names), **own}
        if "train_size" in names:
            options.setdefault("train_size", max(1, round(rows.total)))
        # A user who chooses a fixed prior, or masks hidden units too, gets the prior unchanged.
        fixed = {"prior_keep", "sparsity"} if recipe.grid else {"sparsity"}
        plain = "sparsity" not in names or fixed & set(own) or self._hidden_sites(recipe)
        recipe = replace(recipe, options=options, sparsity=0.0 if plain else recipe.sparsity)
        return recipe, self._sites(recipe)

    def _hidden_sites(self, recipe: Recipe) -> list[str]:
        masked = self.mask_hidden
        if masked != AUTO and not isinstance(masked, bool):
            raise TypeError(f"mask_hidden must be True, False or 'auto', got {masked!r}")
        masked = not self.mask_inputs if masked == AUTO else masked
        return [f"hidden.{layer}.act" for layer in range(len(recipe.hidden))] if masked else []

    def _sites(self, recipe: Recipe) -> Any:
        """Sites of a chain, as for :func:`gflowout.wrap`."""
        method = METHODS[recipe.method]
        sites: dict[str, Any] = {}
        if self.mask_inputs:
            names = getattr(self, "feature_names_in_", None)
            usual = DEFAULT_KEEP if hasattr(method.Options, "prior_keep") else 0.5
            units = units_of(
                self.groups, self.always, self.keep, None if names is None else list(names),
                self.n_features_in_, recipe.options.get("prior_keep") or usual,
                recipe.sparsity if recipe.grid else 0.0,
            )  # fmt: skip
            sites[INPUT] = units if self._encoder is None else self._encoder.units(units)
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
                f"mask_hidden=True with hidden layers (got hidden_layer_sizes={recipe.hidden!r}, "
                f"mask_hidden={self.mask_hidden!r})"
            )
        return sites or ()

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
    setattr(Estimator, _name, available_if(_masks_inputs)(getattr(Estimator, _name)))


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
