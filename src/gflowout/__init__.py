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

import gflowout.methods  # noqa: F401  (fills METHODS)
from gflowout.core.ensemble import Ensemble, EnsembleLosses
from gflowout.core.inclusion import Inclusion
from gflowout.core.likelihoods import Binary, Categorical, Gaussian, Likelihood, MultiLabel
from gflowout.core.method import Losses
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.serialization import load, save
from gflowout.core.site_table import SiteRow, SiteTable, sites
from gflowout.core.sites import Site
from gflowout.core.units import Units
from gflowout.core.wrap import unwrap, wrap

__version__ = "0.1.0"

__all__ = [
    "Binary",
    "Categorical",
    "Ensemble",
    "EnsembleLosses",
    "Gaussian",
    "Inclusion",
    "Likelihood",
    "Losses",
    "MaskedModel",
    "MultiLabel",
    "Predictive",
    "Site",
    "SiteRow",
    "SiteTable",
    "Units",
    "load",
    "save",
    "sites",
    "unwrap",
    "wrap",
]
