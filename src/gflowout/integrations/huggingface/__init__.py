"""Masks for models of ``transformers``: wrap, train with ``Trainer``, predict, save and load."""

from __future__ import annotations

from gflowout.core.optional import require

require("transformers", extra="huggingface", purpose="gflowout.integrations.huggingface")

from gflowout.core.token_scores import TokenScores  # noqa: E402
from gflowout.integrations.huggingface.defaults import (  # noqa: E402
    default_example,
    default_likelihood,
)
from gflowout.integrations.huggingface.files import (  # noqa: E402
    load_adapter,
    load_pretrained,
    save_pretrained,
)
from gflowout.integrations.huggingface.places import default_sites  # noqa: E402
from gflowout.integrations.huggingface.text import CausalModel  # noqa: E402
from gflowout.integrations.huggingface.tokens import Generated, next_tokens  # noqa: E402
from gflowout.integrations.huggingface.trainer import (  # noqa: E402
    MaskedOutput,
    TrainerModel,
    predict_dataset,
)
from gflowout.integrations.huggingface.wrapping import wrap_transformer  # noqa: E402

__all__ = [
    "CausalModel",
    "Generated",
    "MaskedOutput",
    "TokenScores",
    "TrainerModel",
    "default_example",
    "default_likelihood",
    "default_sites",
    "load_adapter",
    "load_pretrained",
    "next_tokens",
    "predict_dataset",
    "save_pretrained",
    "wrap_transformer",
]
