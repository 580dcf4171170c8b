"""Masks for models of ``transformers``: wrap, train with ``Trainer``, predict, keep in a folder.

A wrapped transformer is a model like any other (:func:`gflowout.wrap`); what is here knows where
its layers are, what its outputs mean and what ``Trainer`` expects of a model.
"""

from __future__ import annotations

from gflowout.core.optional import require

require("transformers", extra="huggingface", purpose="gflowout.integrations.huggingface")

from gflowout.integrations.huggingface.defaults import (  # noqa: E402
    default_example,
    default_likelihood,
    default_sites,
    wrap_transformer,
)
from gflowout.integrations.huggingface.files import load_pretrained, save_pretrained  # noqa: E402
from gflowout.integrations.huggingface.trainer import MaskedOutput, TrainerModel, predict_dataset  # noqa: E402

__all__ = [
    "MaskedOutput",
    "TrainerModel",
    "default_example",
    "default_likelihood",
    "default_sites",
    "load_pretrained",
    "predict_dataset",
    "save_pretrained",
    "wrap_transformer",
]
