"""Masks for models of ``transformers``: wrap, train with ``Trainer``, predict, save and load."""

from __future__ import annotations

from gflowout.core.optional import require

require("transformers", extra="huggingface", purpose="gflowout.integrations.huggingface")

from gflowout.integrations.huggingface.defaults import (  # noqa: E402
    default_example,
    default_likelihood,
    default_sites,
    wrap_transformer,
)
from gflowout.integrations.huggingface.trainer import (  # noqa: E402
    MaskedOutput,
    TrainerModel,
    load_pretrained,
    predict_dataset,
    save_pretrained,
)

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
