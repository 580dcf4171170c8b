"""Masks for models of ``transformers``: wrap, train with ``Trainer``, predict, keep in a folder.

A wrapped transformer is a model like any other (:func:`gflowout.wrap`); what is here knows where
its layers are, what its outputs mean and what ``Trainer`` expects of a model.
"""

from __future__ import annotations

from gflowout.extras import require

require("transformers", extra="huggingface", purpose="gflowout.integrations.huggingface")

from gflowout.integrations.huggingface_defaults import (  # noqa: E402
    default_example,
    default_likelihood,
    default_sites,
    wrap_transformer,
)
from gflowout.integrations.huggingface_files import (  # noqa: E402
    load_pretrained,
    save_pretrained,
)
from gflowout.integrations.huggingface_trainer import (  # noqa: E402
    MaskedOutput,
    TrainerModel,
    predict_dataset,
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
