"""A learned posterior over dropout masks for any PyTorch model.

Wrap a module, train with one extra argument (the labels), and predict with uncertainty:

Examples:
    >>> import torch
    >>> import gflowout as gfo
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x = torch.randn(16, 4)
    >>> model = gfo.wrap(net, sites=["1"], likelihood=gfo.Categorical(3), example=(x[:2],))
    >>> model.predict(x).entropy().shape
    torch.Size([16])
"""

import importlib
from typing import TYPE_CHECKING, Any

import gflowout.methods  # noqa: F401  (fills METHODS)
from gflowout.compaction.compact import compact
from gflowout.compaction.report import CompactedSite, Compaction
from gflowout.core.disagreement import Disagreement
from gflowout.core.ensemble import Ensemble, EnsembleLosses
from gflowout.core.inclusion import Inclusion
from gflowout.core.likelihoods import (
    Binary,
    Categorical,
    Cox,
    Gaussian,
    Likelihood,
    MultiLabel,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantile,
    StudentT,
)
from gflowout.core.method import Losses
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.serialization import load, save
from gflowout.core.site_table import SiteRow, SiteTable, sites
from gflowout.core.sites import Site
from gflowout.core.units import Units
from gflowout.core.wrap import unwrap, wrap
from gflowout.methods.combined import CombinedOptions as Combined
from gflowout.methods.concrete import ConcreteDropoutOptions as Concrete
from gflowout.methods.contextual import ContextualDropoutOptions as Contextual
from gflowout.methods.gates import StochasticGatesOptions as Gates
from gflowout.methods.gflowout import GFlowOutOptions as GFlowOut
from gflowout.methods.id_gflowout import IDGFlowOutOptions as IDGFlowOut
from gflowout.methods.masksembles import MasksemblesOptions as Masksembles
from gflowout.methods.mc import MCDropoutOptions as MC  # noqa: N814
from gflowout.methods.modes import ModesOptions as Modes
from gflowout.methods.none import NoDropoutOptions as NoDropout
from gflowout.methods.variational import VariationalDropoutOptions as Variational

if TYPE_CHECKING:
    from gflowout import calibration as calibration
    from gflowout import conformal as conformal
    from gflowout import ood as ood
    from gflowout import selective as selective
    from gflowout import testing as testing
    from gflowout import uncertainty as uncertainty
    from gflowout.data.batches import Batches
    from gflowout.training.fit import fit
    from gflowout.training.options import FitOptions

__version__ = "0.1.0"

__all__ = [
    "MC",
    "Batches",
    "Binary",
    "Categorical",
    "Combined",
    "CompactedSite",
    "Compaction",
    "Concrete",
    "Contextual",
    "Cox",
    "Disagreement",
    "Ensemble",
    "EnsembleLosses",
    "FitOptions",
    "GFlowOut",
    "Gates",
    "Gaussian",
    "IDGFlowOut",
    "Inclusion",
    "Likelihood",
    "Losses",
    "MaskedModel",
    "Masksembles",
    "Modes",
    "MultiLabel",
    "NegativeBinomial",
    "NoDropout",
    "Ordinal",
    "Poisson",
    "Predictive",
    "Quantile",
    "Site",
    "SiteRow",
    "SiteTable",
    "StudentT",
    "Units",
    "Variational",
    "compact",
    "fit",
    "load",
    "save",
    "sites",
    "unwrap",
    "wrap",
]

_MODULES = ("calibration", "conformal", "ood", "selective", "testing", "uncertainty")
"""Modules that are imported when they are first used."""

_NAMES = {
    "Batches": "gflowout.data.batches",
    "FitOptions": "gflowout.training.options",
    "fit": "gflowout.training.fit",
}
"""Names that are imported when they are first used, by module."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"gflowout.{name}")
    if name in _NAMES:
        globals()[name] = value = getattr(importlib.import_module(_NAMES[name]), name)
        return value
    raise AttributeError(f"module 'gflowout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
