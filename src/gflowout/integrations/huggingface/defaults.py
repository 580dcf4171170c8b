"""Defaults for models of ``transformers``: likelihood, example call, and what both need.

These are read from modules and configuration, never from the name of an architecture, so new
architectures work if they are built like existing ones. For a model with adapters of ``peft`` they
are those of the transformer inside.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.call import is_causal
from gflowout.core.likelihoods import Categorical, Gaussian, Likelihood, MultiLabel
from gflowout.core.predictive import Predictive
from gflowout.integrations.huggingface.adapters import base_of

IGNORED = -100  # the label of tokens that `transformers` ignores in a loss
MASK = "attention_mask"  # the argument that tells real tokens from padding

_BUCKETS = 256  # of a vocabulary, as a mask posterior sees the labels

_ROWS, _TOKENS = 3, 7  # sizes that nothing else in a transformer has


def default_likelihood(backbone: nn.Module) -> Likelihood:
    """What the outputs of a transformer mean, by its ``problem_type`` and number of labels.

    Token classification and causal language models, whose classes are the vocabulary, leave out the
    label -100. Without a ``problem_type``, one label means regression and several mean one of them:
    for several at a time (which ``transformers`` tells by the type of the labels) say
    ``problem_type="multi_label_classification"``.

    Args:
        backbone: A model of ``transformers``, with or without adapters of ``peft``.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> default_likelihood(BertForSequenceClassification(config))
        Categorical(classes=3)
    """
    base = base_of(backbone)
    config = base.config
    if is_causal(base):
        vocabulary = config.get_text_config().vocab_size
        buckets = _BUCKETS if vocabulary > _BUCKETS else None
        return Categorical(vocabulary, ignore_index=IGNORED, buckets=buckets)
    labels = checks.integer("num_labels", config.num_labels, low=1)
    problem = getattr(config, "problem_type", None)
    if problem == "regression" or (problem is None and labels == 1):
        return Gaussian(labels)
    if problem == "multi_label_classification":
        return MultiLabel(labels)
    if type(base).__name__.endswith("ForTokenClassification"):
        return Categorical(labels, ignore_index=IGNORED)
    return Categorical(labels)


def mean_logits(pred: Predictive) -> Tensor:
    """Logits whose softmax (sigmoid for yes-or-no labels) is the mean predicted probability.

    In regression, the means are returned.
    """
    if not pred.likelihood.has_classes:
        return pred.mean
    tiny = torch.finfo(pred.mean.dtype).tiny  # a probability of 0 would be a logit of -inf
    if isinstance(pred.likelihood, Categorical):
        return pred.mean.clamp(min=tiny).log()
    return pred.mean.clamp(min=tiny).log() - (1 - pred.mean).clamp(min=tiny).log()


def default_example(backbone: nn.Module) -> dict[str, Tensor]:
    """A call of a transformer by its configuration: random tokens, some padding; or images.

    Args:
        backbone: One that takes ``input_ids`` or ``pixel_values``, with or without adapters.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> sorted(default_example(BertForSequenceClassification(config)))
        ['attention_mask', 'input_ids', 'token_type_ids']
    """
    base = base_of(backbone)
    config, main = base.config, base.main_input_name
    source = torch.Generator().manual_seed(0)
    if main == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        images = torch.randn(_ROWS, config.num_channels, *sides, generator=source)
        return {main: images.to(base.device, base.dtype)}
    if main != "input_ids":
        raise ValueError(
            f"example must be given for {type(base).__name__}, whose main input is {main!r}: "
            "one real call, as a dict of keyword arguments"
        )
    text = config.get_text_config()
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    special = {name: getattr(text, name, None) for name in names}
    plain = [token for token in range(text.vocab_size) if token not in special.values()]
    drawn = torch.randint(len(plain), (_ROWS, _TOKENS), generator=source)
    ids, real = torch.tensor(plain)[drawn], torch.ones(_ROWS, _TOKENS, dtype=torch.long)
    real[1, -2:] = 0
    pad, end = special["pad_token_id"], special["eos_token_id"]
    if isinstance(end, int) and config.is_encoder_decoder:  # such heads read the last token
        ids[torch.arange(_ROWS), real.sum(1) - 1] = end
    if isinstance(pad, int):
        ids[real == 0] = pad
    call = {main: ids, MASK: real, "token_type_ids": torch.zeros_like(ids)}
    taken = inspect.signature(base.forward).parameters
    if getattr(text, "type_vocab_size", 0) < 1:
        del call["token_type_ids"]
    return {name: value.to(base.device) for name, value in call.items() if name in taken}


def parameters(backbone: nn.Module) -> list[str]:
    """Names of the arguments of a backbone; of the transformer inside, if it has adapters."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = inspect.signature(base_of(backbone).forward).parameters
    return [name for name, parameter in taken.items() if parameter.kind not in several]
