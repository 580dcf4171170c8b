"""Text, networks and posteriors of the study ranks: a small BERT, its adapters, Laplace, spreads.

A network is pretrained here from scratch on one kind of text. It is then adapted with LoRA to
another kind, and tested on sentences of that and of further kinds.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core.optional import require
from gflowout.core.random import generator
from gflowout.data import store
from gflowout.data.batches import Batches
from gflowout.data.ratings import Ratings, load_ratings
from gflowout.data.vqa.inputs import PAD, Tokenizer
from gflowout.methods import METHODS
from gflowout.runs import Context, locks
from gflowout.runs.spec import canonical
from gflowout.studies.framework.arms import Arm
from gflowout.studies.images import STORE
from gflowout.training import FitOptions, FitResult, fit

CLASSES = ("negative", "neutral", "positive")
NEUTRAL = 0.5
"""Mean ratings from minus this to this are neutral."""
PRETRAINED = ("movies", "products", "news")
ADAPTED = "tweets"
TESTED = {ADAPTED: "Tweets", "products": "Product reviews", "news": "News"}
"""Kinds of text that are tested; the first is the one that adapters are trained on."""
TEST_SHARE, VALID_SHARE = 0.25, 0.2
"""Of the reviews, articles or tweets; and of those that are left."""
TEST_SEED = 1000
"""Of the test sentences, which are the same for all seeds and in no other part."""
MIN_COUNT = 3
"""Rarer words are unknown."""
BATCH, PREDICTED = 64, 500
"""Sentences of a training step, and those that are predicted at a time."""
_FIRST = "<s>"
"""A word before every sentence, whose features are classified."""
_OF_DATA = ("length", "rows")
"""Options without a dot that decide what a network learns."""

Rows = tuple[Tensor, Tensor]
"""Token ids [rows, length] and classes [rows]."""
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Sentences to pretrain on, to adapt to and to test with."""

    base_train: Rows
    base_valid: Rows
    train: Rows
    valid: Rows
    tests: Mapping[str, Rows]
    words: int

    def checksums(self, test: bool) -> dict[str, str]:
        """Of the rows, those of the tests if they were used."""
        names = [field.name for field in fields(self) if field.name not in ("tests", "words")]
        parts = {name: getattr(self, name) for name in names} | (dict(self.tests) if test else {})
        return {
            name: f"sha256:{hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()}"
            for name, (x, y) in parts.items()
        }


def classes(ratings: Tensor) -> Tensor:
    """Class of each mean rating.

    Examples:
        >>> classes(torch.tensor([-2.0, -0.5, 0.5, 0.6]))
        tensor([0, 1, 1, 2])
    """
    return (ratings >= -NEUTRAL).long() + (ratings > NEUTRAL).long()


def load(seed: int, options: Options) -> Problem:
    """The sentences that belong to a seed; of a part at most as many as ``rows`` says.

    Reviews and articles are divided, not their sentences: those of one are all in one part.
    """
    kinds, most = (*PRETRAINED, ADAPTED), options["rows"]
    ratings = {name: _ratings(name, os.environ.get(store.VARIABLE)) for name in kinds}
    parts = {name: divided(ratings[name].sources, seed) for name in kinds}

    def sentences(part: int, names: Sequence[str], count: int) -> tuple[list[str], Tensor]:
        """Texts and classes of one part of some kinds: 0 to train, 1 to validate, 2 to test."""
        places = [(name, row) for name in names for row in parts[name][part].tolist()]
        order = torch.randperm(len(places), generator=generator(TEST_SEED, "ranks", *names))
        chosen = [places[place] for place in order[:count].tolist()]
        texts = [f"{_FIRST} {ratings[name].texts[row]}" for name, row in chosen]
        return texts, classes(torch.stack([ratings[name].values[row] for name, row in chosen]))

    base = sentences(0, PRETRAINED, most["base_train"])
    tokenizer = Tokenizer.fit(base[0], length=options["length"], min_count=MIN_COUNT)

    def rows(texts: list[str], labels: Tensor) -> Rows:
        return tokenizer.encode(texts), labels

    return Problem(
        base_train=rows(*base),
        base_valid=rows(*sentences(1, PRETRAINED, most["base_valid"])),
        train=rows(*sentences(0, [ADAPTED], most["train"])),
        valid=rows(*sentences(1, [ADAPTED], most["valid"])),
        tests={name: rows(*sentences(2, [name], most["test"])) for name in TESTED},
        words=len(tokenizer),
    )


@lru_cache(maxsize=4)
def _ratings(domain: str, directory: str | None) -> Ratings:
    del directory  # another one has another file
    return load_ratings(domain)


def divided(sources: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train, to validate and to test, whose sources have nothing in common.

    Examples:
        >>> train, valid, test = divided(torch.arange(20) // 2, seed=0)
        >>> len(train), len(valid), len(test)
        (12, 4, 4)
    """
    fixed = _shuffled(torch.unique(sources), generator(TEST_SEED, "ranks test"))
    count = round(TEST_SHARE * len(fixed))
    rest = _shuffled(fixed[count:], generator(seed, "ranks"))
    valid_count = round(VALID_SHARE * len(rest))
    numbers = (rest[valid_count:], rest[:valid_count], fixed[:count])
    train, valid, test = (torch.isin(sources, own).nonzero()[:, 0] for own in numbers)
    return train, valid, test


def _shuffled(values: Tensor, source: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=source)]


# Networks


def call(tokens: Tensor) -> dict[str, Any]:
    """Arguments of a network for token ids; columns of padding alone are left out."""
    real = tokens != PAD
    length = int(real.any(0).sum())
    return {"input_ids": tokens[:, :length], "attention_mask": real[:, :length].long()}


def unpack(batch: tuple[Tensor, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """A batch for :func:`gflowout.training.fit`."""
    return (), dict(call(batch[0])), batch[1]


def network(options: Options, words: int, dropout: float) -> nn.Module:
    """A BERT of a few layers that classifies sentences, before training."""
    transformers = _transformers()
    width = options["net.width"]
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=options["net.layers"],
        num_attention_heads=options["net.heads"],
        intermediate_size=2 * width,
        max_position_embeddings=options["length"],
        num_labels=len(CLASSES),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=PAD,
    )
    net: nn.Module = transformers.BertForSequenceClassification(config)
    return net


def pretrained(problem: Problem, options: Options, seed: int, context: Context) -> nn.Module:
    """The network that all adapters of a seed share: trained now, or found in the store.

    Dropout is for its training only: beside the masks nothing is random in that of an adapter.
    """
    how = _under("base.", options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "ranks base").initial_seed())
        net = network(options, problem.words, how["dropout"])
        plain = network(options, problem.words, 0.0)
    example, likelihood = call(problem.base_train[0][:2]), gfo.Categorical(len(CLASSES))
    model = gfo.wrap(net, "none", (), likelihood=likelihood, example=example)
    values = {
        key: value
        for key, value in options.items()
        if key.startswith(("base.", "net.")) or key in _OF_DATA
    } | {"part": "base", "seed": seed}
    fitting = FitOptions(**{k: v for k, v in how.items() if k != "dropout"}, seed=seed)
    _fit(model, problem.base_train, problem.base_valid, fitting, values, context)
    plain.load_state_dict(net.state_dict())
    return plain


def adapted(
    arm: Arm,
    problem: Problem,
    options: Options,
    seed: int,
    context: Context,
    *,
    member: int = 0,
    units: str = "ranks",
) -> tuple[gfo.MaskedModel, FitResult]:
    """The pretrained network with an adapter and masks on its units; trained now, or found.

    Members of an ensemble differ in the start of the adapter and in the order of the sentences.
    """
    config = {**options, **arm.options, **options["tuned"]}
    own = generator(seed, "ranks adapter", member).initial_seed() % 2**31
    base = pretrained(problem, options, seed, context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own)
        model = _masked(arm.method, units, base, problem, config)
    values = {key: value for key, value in config.items() if "." in key or key in _OF_DATA}
    values |= {"method": arm.method, "units": units, "seed": seed, "member": member}
    how = FitOptions(**_under("fit.", config), seed=own)
    return model, _fit(model, problem.train, problem.valid, how, values, context)


def _masked(
    method: str, units: str, base: nn.Module, problem: Problem, config: Options
) -> gfo.MaskedModel:
    peft = require("peft", extra="huggingface", purpose="the study ranks")
    from gflowout.integrations.huggingface import wrap_transformer

    rank, targets = config["net.rank"], list(config["net.targets"])
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=targets)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # peft reads an old name
        net = peft.get_peft_model(base, lora)
    own = _under("method.options.", config)
    if "train_size" in METHODS[method].Options.__dataclass_fields__:
        own["train_size"] = len(problem.train[0])
    example = call(problem.train[0][:2])
    return wrap_transformer(net, method, units=units, example=example, **own)


def _fit(
    model: gfo.MaskedModel,
    train: Rows,
    valid: Rows,
    options: FitOptions,
    values: Mapping[str, Any],
    context: Context,
) -> FitResult:
    """Train a model, or take the weights of an equal one from the store."""
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    folder = context.folder.parent / STORE / f"ranks-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    batches = Batches(*train, batch_size=BATCH, shuffle=True, seed=options.seed)
    validation = Batches(*valid, batch_size=PREDICTED)
    # Another run may be training the same model: then it is done when the lock is free.
    with locks.hold(folder / ".wanted.lock", wait=True):
        return fit(
            model, batches, validation, options, folder=folder, progress=False, unpack=unpack
        )


def _under(prefix: str, options: Options) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        if key.startswith(prefix)
    }


def _transformers() -> Any:
    return require("transformers", extra="huggingface", purpose="the study ranks")


# Predictions


def predict(
    model: gfo.MaskedModel | gfo.Ensemble, tokens: Tensor, samples: int, seed: int
) -> gfo.Predictive:
    """Draws of a model for token ids, batch by batch."""
    source = torch.Generator().manual_seed(seed)
    parts = torch.split(tokens, PREDICTED)
    return gfo.Predictive.join(
        [model.predict(**call(part), samples=samples, generator=source) for part in parts]
    )


@torch.no_grad()
def head(model: gfo.MaskedModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs [rows, width] and outputs [rows, classes] of the last layer, without masks."""
    net = model.eval().backbone.get_base_model()  # type: ignore[operator]
    features = torch.cat(
        [net.bert(**call(part)).pooler_output for part in torch.split(tokens, PREDICTED)]
    )
    return features, net.classifier(features)


@torch.no_grad()
def spread(model: gfo.MaskedModel, rows: Rows, draws: int, seed: int) -> tuple[float, float, float]:
    """How much the log-likelihood of labels depends on masks that all sentences share.

    Returns:
        Standard deviation over masks of the log-likelihood of one label, averaged over labels; that
        of the sum over all labels; and the mean log-likelihood over labels and masks.
    """
    source = torch.Generator().manual_seed(seed)
    drawn = model.predict(
        **call(rows[0][:1]), samples=draws, generator=source, return_masks=True
    ).masks
    assert drawn is not None
    scores = []
    parts = (torch.split(tensor, PREDICTED) for tensor in rows)
    for part, label in zip(*parts, strict=True):
        masks = [mask.expand(-1, len(part), -1) for mask in drawn]
        pred = model.predict(**call(part), masks=masks)
        chosen = label.expand(draws, -1).unsqueeze(-1)
        scores.append(pred.samples.gather(-1, chosen).squeeze(-1).log().double())
    log_likelihood = torch.cat(scores, 1)
    return (
        float(log_likelihood.std(0).mean()),
        float(log_likelihood.sum(1).std()),
        float(log_likelihood.mean()),
    )
