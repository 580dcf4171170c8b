"""Parameters of the estimators, and what they mean for the networks: recipe, options and sites.

Parameters are stored as given and checked in ``fit``, as scikit-learn requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch

from gflowout.core import checks
from gflowout.core.renamed import renamed
from gflowout.core.sites import INPUT
from gflowout.core.units import Units
from gflowout.integrations.sklearn.features import is_list, units_of
from gflowout.integrations.sklearn.frames import TableReader
from gflowout.integrations.sklearn.recipes import FEATURES, HIDDEN, LOOPED, RANDOM, ROWS, Recipe
from gflowout.integrations.sklearn.tabular import Table
from gflowout.methods import METHODS
from gflowout.methods._shared import DEFAULT_KEEP

AUTO = "auto"
STACKED = frozenset({"beta", "draws", "keep", "prior_keep", "start_keep", "train_size"})
"""Options with which chains are trained side by side."""
HIDDEN_KEEP = 0.5  # prior keep rate of hidden units beside masked inputs, whose prior is sparse


@dataclass(eq=False, repr=False)
class Parameters(TableReader):
    """Parameters of the estimators.

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

    def _check_parameters(self) -> None:
        """Check what recipe and sites do not; warn of arguments that have another name now."""
        if self.if_empty is not None:
            checks.choice("if_empty", self.if_empty, ("best", "error"))
        _check_device(self.device)
        checks.boolean("standardize", self.standardize)
        checks.boolean("verbose", self.verbose)
        checks.number("threshold", self.threshold, low=0, high=1)
        names = ("hidden", "hidden_layer_sizes")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        renamed(given, dict([names]), type(self).__name__)

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
