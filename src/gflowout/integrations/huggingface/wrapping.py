"""Give a model of ``transformers``, with or without adapters of ``peft``, masks by defaults."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gflowout.core import checks
from gflowout.core.call import is_causal, named_tensors
from gflowout.core.likelihoods import Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.probe import split_example
from gflowout.core.site_names import SiteNames
from gflowout.core.wrap import wrap
from gflowout.integrations.huggingface.adapters import base_of, refuse_virtual_tokens
from gflowout.integrations.huggingface.defaults import (
    MASK,
    default_example,
    default_likelihood,
)
from gflowout.integrations.huggingface.places import default_sites
from gflowout.integrations.huggingface.text import as_causal
from gflowout.methods import METHODS, Options

# Parts of the names of classes whose logits and labels fit a likelihood.
_HEADS = ("Classification", "Regression", "NextSentencePrediction")
_READ_ALL_TOKENS = ("gflowout", "combined", "contextual", "modes")
"""Methods whose masks depend on averages over all tokens of a sequence."""


def wrap_transformer(
    backbone: nn.Module,
    method: str | Options = "gflowout",
    sites: SiteNames = None,
    *,
    units: str | None = None,
    adapter: str | None = None,
    likelihood: Likelihood | str | None = None,
    example: Any = None,
    padding: str | None = "auto",
    preset: str | None = None,
    **options: Any,
) -> MaskedModel:
    """Give a model of ``transformers``, or of ``peft`` around one, masks; all has a default.

    With LoRA adapters, masks are on their ranks, and the base model stays frozen as ``peft`` left
    it.

    Args:
        backbone: With a head for classification (of sequences, tokens, images, ...) or regression,
            or a causal language model. Others only with a likelihood and an example of your own.
        method: As for :func:`gflowout.wrap`. Masks of ``"gflowout"``, ``"combined"``,
            ``"contextual"`` and ``"modes"`` depend on all tokens of a sequence; on a causal
            language model you are warned.
        sites: As there; ``None``: see :func:`default_sites`.
        units: What one unit is, if ``sites`` is not given: ``"ranks"``, ``"heads"``, ``"blocks"``
            or ``"features"``; see :func:`default_sites`.
        adapter: Name of the adapter whose ranks are masked; ``None``: the active one.
        likelihood: As there; ``None``: see :func:`default_likelihood`.
        example: As there; ``None``: see :func:`default_example`.
        padding: As there; ``"auto"``: ``"attention_mask"``, if the example has it. A warning names
            the sites that have other positions than it; there padding counts like real tokens.
        preset: As there.
        **options: Options of the method. Masks start from the rate of the dropout that stood at
            the site, or keep 0.9 of the units, unless ``keep`` or a preset says otherwise.

    Examples:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> model.predict(input_ids=torch.randint(1, 50, (4, 9))).mean.shape
        torch.Size([4, 3])
    """
    base = base_of(backbone)
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            "backbone must be a model of transformers, or of peft around one, got "
            f"{type(base).__name__}; wrap others with gfo.wrap"
        )
    if sites is not None and (units is not None or adapter is not None):
        raise ValueError(
            f"units and adapter choose the sites, and sites names them: give either, got "
            f"units={units!r}, adapter={adapter!r} and sites={sites!r}"
        )
    if likelihood is None or example is None:
        _refuse_heads(base)
    if is_causal(base):
        refuse_virtual_tokens(backbone)
    if not isinstance(method, Options):
        checks.choice("method", method, METHODS)
    if example is None:
        example = default_example(backbone)
    args, kwargs = split_example(example)
    if padding == "auto":
        padding = MASK if MASK in named_tensors(backbone, args, kwargs) else None
    sites = default_sites(backbone, example, units, adapter) if sites is None else sites
    likelihood = default_likelihood(backbone) if likelihood is None else likelihood
    model = wrap(
        backbone, method, sites, likelihood=likelihood, example=example, padding=padding,
        preset=preset, **options,
    )  # fmt: skip
    _warn_of_tokens(model, padding, is_causal(base))
    return as_causal(model)


def _warn_of_tokens(model: MaskedModel, padding: str | None, causal: bool) -> None:
    """Warn if masks depend on padding, or on tokens that a causal language model must not see."""
    other = [
        site.name
        for site in model.sites
        if padding is not None and site.tokens is None and site.rank > 1 + len(site.axes)
    ]
    if other:
        warnings.warn(
            f"padding: the positions at {', '.join(other)} are not those of {padding!r}, so that "
            "padding counts like real tokens there, and masks depend on how far a sentence was "
            "padded; leave these sites out, or pad all sentences to one length",
            stacklevel=3,
        )
    if causal and model.method.name in _READ_ALL_TOKENS:
        warnings.warn(
            f"method {model.method.name!r} draws masks from averages over all tokens of a "
            "sequence, so that probabilities of a token depend on tokens after it: in generation "
            "masks depend on the prompt alone, but a likelihood of given text is too high; use "
            "'id-gflowout' for that",
            stacklevel=3,
        )


def _refuse_heads(backbone: PreTrainedModel) -> None:
    """Raise if outputs and labels are not those of a likelihood."""
    # A forward of the user's own may return anything, whatever the class is called.
    owner = next(kind for kind in type(backbone).__mro__ if "forward" in vars(kind))
    ours = owner.__module__.partition(".")[0] == "transformers"
    if ours and not is_causal(backbone) and not any(head in owner.__name__ for head in _HEADS):
        raise TypeError(
            "backbone must have a head for sequence classification, token classification, image "
            "(audio, video) classification or regression, such as BertForSequenceClassification, "
            "or be a causal language model, such as LlamaForCausalLM, "
            f"got {type(backbone).__name__}; for another one, give both likelihood= and example="
        )
