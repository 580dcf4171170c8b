"""Wrapping models of ``transformers``: default sites, likelihood and example call.

These are read from modules and configuration, never from the name of an architecture, so new
architectures work if they are built like existing ones.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gflowout.core import checks
from gflowout.core.call import Args, Call, Kwargs, named_tensors
from gflowout.core.likelihoods import Categorical, Gaussian, Likelihood, MultiLabel
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.probe import split_example
from gflowout.core.sites import SiteNames
from gflowout.core.trace import masked_call
from gflowout.core.wrap import wrap
from gflowout.methods import METHODS

KEEP = 0.9  # keep rate that masks start from: transformers usually have a dropout of 0.1
IGNORED = -100  # the label of tokens that `transformers` ignores in a loss
MASK = "attention_mask"  # the argument that tells real tokens from padding

# Paths in a layer: of the dropout after the MLP, which a mask replaces; without one, of the MLP or
# its last part; of the attention, which is masked where the MLP has no batch axis.
_DROPOUTS = ("output.dropout", "mlp.dropout", "ffn.dropout")
_MLPS = ("mlp", "ffn", "feed_forward", "DenseReluDense", "output.dense", "fc2")
_ATTENTION = "self_attn"
# Parts of the names of classes whose logits and labels fit a likelihood.
_HEADS = ("Classification", "Regression", "NextSentencePrediction")
_ROWS, _TOKENS = 3, 7  # sizes that nothing else in a transformer has


def wrap_transformer(
    backbone: PreTrainedModel,
    method: str = "gflowout",
    sites: SiteNames = None,
    *,
    likelihood: Likelihood | None = None,
    example: Any = None,
    padding: str | None = "auto",
    preset: str | None = None,
    **options: Any,
) -> MaskedModel:
    """Give a model of ``transformers`` masks; everything has a default.

    Args:
        backbone: With a head for classification (of sequences, tokens, images, ...) or regression.
            Others only with a likelihood and an example of your own.
        method: As for :func:`gflowout.wrap`.
        sites: As there; ``None``: see :func:`default_sites`.
        likelihood: As there; ``None``: see :func:`default_likelihood`.
        example: As there; ``None``: see :func:`default_example`.
        padding: As there; ``"auto"``: ``"attention_mask"``, if the example has it. A warning names
            the sites that have other positions than it; there padding counts like real tokens.
        preset: As there.
        **options: Options of the method. Masks keep 0.9 of the units to start with, unless
            ``prior_keep``, ``rate`` or a preset says otherwise.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> model.predict(input_ids=torch.randint(1, 50, (4, 9))).mean.shape
        torch.Size([4, 3])
    """
    if not isinstance(backbone, PreTrainedModel):
        raise TypeError(
            "backbone must be a model of transformers, got "
            f"{type(backbone).__name__}; wrap others with gfo.wrap"
        )
    if likelihood is None or example is None:
        _refuse_heads(backbone)
    refuse_checkpointing(backbone)
    checks.choice("method", method, METHODS)
    if example is None:
        example = default_example(backbone)
    args, kwargs = split_example(example)
    if padding == "auto":
        padding = MASK if MASK in named_tensors(backbone, args, kwargs) else None
    if preset is None:
        fields = {option.name for option in dataclasses.fields(METHODS[method].Options)}
        starts = {"prior_keep": KEEP, "rate": 1 - KEEP}
        options = {name: start for name, start in starts.items() if name in fields} | options
    sites = default_sites(backbone, example) if sites is None else sites
    likelihood = default_likelihood(backbone) if likelihood is None else likelihood
    model = wrap(
        backbone, method, sites, likelihood=likelihood, example=example, padding=padding,
        preset=preset, **options,
    )  # fmt: skip
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
            stacklevel=2,
        )
    return model


def default_sites(backbone: PreTrainedModel, example: Any = None) -> list[str]:
    """Names of the sites of a transformer: what each layer's MLP adds, and the head's dropout.

    The residual stream itself is never masked, only what is added to it. Where a layer has an
    ``nn.Dropout`` after its MLP, the mask replaces it; other dropout stays. Modules that do not run
    exactly once are left out, and so are those whose output has no batch axis; where that is the
    MLP (OPT puts the tokens of all sentences in one row), what the layer's attention adds is masked
    instead.

    Args:
        backbone: A model of ``transformers``.
        example: One call, as for :func:`wrap_transformer`.

    Examples:
        >>> from transformers import GPT2Config, GPT2ForSequenceClassification
        >>> config = GPT2Config(
        ...     vocab_size=50, n_embd=16, n_layer=2, n_head=2, pad_token_id=0, eos_token_id=1,
        ...     bos_token_id=1,
        ... )
        >>> default_sites(GPT2ForSequenceClassification(config))
        ['transformer.h.0.mlp.dropout', 'transformer.h.1.mlp.dropout']
    """
    layers = [
        [f"{name}.{number}.{inside}" for inside in _places(layer)]
        for name, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList)
        for number, layer in enumerate(module)
    ]
    body = f"{backbone.base_model_prefix}."
    heads = [
        [name]
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Dropout) and not name.startswith(body)
    ]
    tried = [name for names in layers + heads for name in names]
    args, kwargs = split_example(default_example(backbone) if example is None else example)
    shapes, batch = _shapes(backbone, tried, args, kwargs)
    # They run once, and their output has a batch axis before that of the features.
    usable = {name for name, runs in shapes.items() if len(runs) == 1 and batch in runs[0][:-1][:2]}
    masked = [next((name for name in names if name in usable), None) for names in layers + heads]
    sites = [name for name in masked if name is not None]
    first = [names[0] for names in layers if names]
    shared = any(len(shapes[name]) > 1 for name in first)
    why = "run more than once each (shared weights)" if shared else "give nothing with a batch axis"
    kind = type(backbone).__name__
    if not sites and first:
        raise ValueError(
            f"sites: the default cannot be used for {kind}: its layers {why} at {first[0]!r}; name "
            "other submodules whose output, [batch, ..., features], is to be masked, as in "
            'sites=["encoder.layer.*.attention.output"]'
        )
    if not sites:
        raise ValueError(
            f"sites: {kind} has no layers with an MLP that could be found; name the submodules "
            'whose output is to be masked, as in sites=["encoder.layer.*.output.dense"]'
        )
    if first and not any(masked[: len(layers)]):
        warnings.warn(
            f"sites: the layers of {kind} {why}, so that the masks are at {', '.join(sites)} alone",
            stacklevel=2,
        )
    return sites


def default_likelihood(backbone: PreTrainedModel) -> Likelihood:
    """What the outputs of a transformer mean, by its ``problem_type`` and number of labels.

    Token classification leaves out the label -100. Without a ``problem_type``, one label means
    regression and several mean one of them: for several at a time (which ``transformers`` tells by
    the type of the labels) say ``problem_type="multi_label_classification"``.

    Args:
        backbone: A model of ``transformers``.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> default_likelihood(BertForSequenceClassification(config))
        Categorical(classes=3)
    """
    config = backbone.config
    labels = checks.integer("num_labels", config.num_labels, low=1)
    problem = getattr(config, "problem_type", None)
    if problem == "regression" or (problem is None and labels == 1):
        return Gaussian(labels)
    if problem == "multi_label_classification":
        return MultiLabel(labels)
    if type(backbone).__name__.endswith("ForTokenClassification"):
        return Categorical(labels, ignore_index=IGNORED)
    return Categorical(labels)


def mean_logits(pred: Predictive) -> Tensor:
    """Logits whose softmax (sigmoid for yes-or-no labels) is the mean predicted probability.

    In regression, the means are returned.
    """
    if isinstance(pred.likelihood, Gaussian):
        return pred.mean
    tiny = torch.finfo(pred.mean.dtype).tiny  # a probability of 0 would be a logit of -inf
    if isinstance(pred.likelihood, Categorical):
        return pred.mean.clamp(min=tiny).log()
    return pred.mean.clamp(min=tiny).log() - (1 - pred.mean).clamp(min=tiny).log()


def default_example(backbone: PreTrainedModel) -> dict[str, Tensor]:
    """A call of a transformer by its configuration: random tokens, some padding; or images.

    Args:
        backbone: One that takes ``input_ids`` or ``pixel_values``.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> sorted(default_example(BertForSequenceClassification(config)))
        ['attention_mask', 'input_ids', 'token_type_ids']
    """
    config, main = backbone.config, backbone.main_input_name
    source = torch.Generator().manual_seed(0)
    if main == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        images = torch.randn(_ROWS, config.num_channels, *sides, generator=source)
        return {main: images.to(backbone.device, backbone.dtype)}
    if main != "input_ids":
        raise ValueError(
            f"example must be given for {type(backbone).__name__}, whose main input is {main!r}: "
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
    taken = inspect.signature(backbone.forward).parameters
    if getattr(text, "type_vocab_size", 0) < 1:
        del call["token_type_ids"]
    return {name: value.to(backbone.device) for name, value in call.items() if name in taken}


def refuse_checkpointing(backbone: nn.Module) -> None:
    """Raise if activations are recomputed in the backward pass, where no masks are."""
    # What PreTrainedModel.is_gradient_checkpointing looks at; newer versions rename the property.
    if any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules()):
        raise ValueError(
            "gradient checkpointing recomputes layers without masks, so that gradients would be "
            "wrong: call gradient_checkpointing_disable() on the backbone, or train without "
            "gradient_checkpointing=True"
        )


def parameters(backbone: nn.Module) -> list[str]:
    """Names of the arguments of a backbone."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = inspect.signature(backbone.forward).parameters
    return [name for name, parameter in taken.items() if parameter.kind not in several]


def _refuse_heads(backbone: PreTrainedModel) -> None:
    """Raise if outputs and labels are not those of classification or regression."""
    # A forward of the user's own may return anything, whatever the class is called.
    owner = next(kind for kind in type(backbone).__mro__ if "forward" in vars(kind))
    ours = owner.__module__.partition(".")[0] == "transformers"
    if ours and not any(head in owner.__name__ for head in _HEADS):
        raise TypeError(
            "backbone must have a head for sequence classification, token classification, image "
            "(audio, video) classification or regression, such as BertForSequenceClassification, "
            f"got {type(backbone).__name__}; for another one, give both likelihood= and example="
        )


def _places(layer: nn.Module) -> list[str]:
    """Paths inside a layer with an MLP of the modules that give its output; the best first."""
    inside = dict(layer.named_modules())
    paths = [path for path in _DROPOUTS if isinstance(inside.get(path), nn.Dropout)]
    paths += [path for path in _MLPS if path in inside]
    return paths[:1] + ([_ATTENTION] if paths and _ATTENTION in inside else [])


def _shapes(
    backbone: nn.Module, names: list[str], args: Args, kwargs: Kwargs
) -> tuple[dict[str, list[tuple[int, ...]]], int]:
    """Output shapes of modules in a call, one for every time that they run; and the batch size."""
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}

    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple | list) and output else output
        shapes[name].append(tuple(value.shape) if isinstance(value, Tensor) else ())

    try:
        with ExitStack() as hooks:
            for name in shapes:
                module = backbone.get_submodule(name)
                hooks.enter_context(module.register_forward_hook(partial(note, name)))
            logits = masked_call(Call(backbone, args, kwargs))
    except Exception as error:
        given = ", ".join([f"argument {at}" for at in range(len(args))] + list(kwargs))
        taken = ", ".join(parameters(backbone))
        raise ValueError(
            f"example must be a call that {type(backbone).__name__} takes, got {given}, on which "
            f"it fails: {error} (it takes {taken})"
        ) from error
    return shapes, len(logits)
