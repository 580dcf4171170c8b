"""Training with ``transformers.Trainer``, and predicting a data set."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import TrainingArguments, default_data_collator
from transformers.utils.generic import ModelOutput

from gflowout.core import checks, random, tree
from gflowout.core.call import Call, are_tokens, check_shift, logits_of
from gflowout.core.likelihoods import Categorical
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive, of_labels
from gflowout.integrations.huggingface.adapters import base_of
from gflowout.integrations.huggingface.defaults import IGNORED, mean_logits, parameters
from gflowout.integrations.huggingface.tokens import next_tokens

LABELS = ("labels", "label", "label_ids")  # names of the labels in data sets


@dataclass
class MaskedOutput(ModelOutput):
    """What a :class:`TrainerModel` returns.

    Attributes:
        loss: In training, what the method minimises; the likelihood of an example is that of all
            its labels. In evaluation, the negative log-likelihood per label that counts, as in
            ``transformers``: per token, or per yes or no; in regression, per example. ``None``
            without labels.
        logits: In evaluation, their softmax (sigmoid for several labels) is the mean predicted
            probability; means in regression. In training, those of one mask from a posterior that
            may have seen the labels: no measure of how good a model is.
        nll: In training, the part of the loss that trains the backbone.
        tb: In training, the part that trains the posterior.
        prior: In training, the part that trains the prior.

    Examples:
        >>> MaskedOutput(loss=torch.tensor(0.5), logits=torch.zeros(1, 2)).to_tuple()
        (tensor(0.5000), tensor([[0., 0.]]))
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    nll: Tensor | None = None
    tb: Tensor | None = None
    prior: Tensor | None = None


class _Forward:
    """A ``forward`` with the backbone's signature, by which ``Trainer`` drops columns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        bound: Any = functools.partial(self.function, instance)
        bound.__signature__ = inspect.signature(base_of(instance.model.backbone).forward)
        return bound


class TrainerModel(nn.Module):
    """A wrapped model that ``transformers.Trainer`` can train and evaluate.

    It takes ``labels`` and returns ``loss`` and ``logits``, as ``Trainer`` expects: its subclasses,
    callbacks, checkpoints and ``compute_metrics`` need no change.

    Args:
        model: From :func:`wrap_transformer` or :func:`gflowout.wrap`.
        samples: Draws per example in evaluation.
        seed: Of the draws in evaluation. Every evaluation begins with it, so that what changed is
            the model; batches of one evaluation have different draws.

    Examples:
        >>> import gflowout as gfo
        >>> net = nn.Linear(4, 3)
        >>> x, labels = torch.randn(8, 4), torch.randint(3, (8,))
        >>> model = gfo.wrap(net, sites=["input"], likelihood=gfo.Categorical(3), example=(x,))
        >>> trainable = TrainerModel(model)
        >>> trainable(x, labels=labels).loss.backward()
        >>> trainable.eval()(x).logits.softmax(-1).sum(-1).allclose(torch.ones(8))
        True
    """

    accepts_loss_kwargs = False
    """``Trainer`` then divides the loss by the number of accumulated batches."""

    def __init__(self, model: MaskedModel, samples: int = 20, seed: int = 0) -> None:
        super().__init__()
        if not isinstance(model, MaskedModel):
            raise TypeError(
                f"model must come from wrap_transformer or gfo.wrap, got {type(model).__name__}"
            )
        self.model = model
        self.samples = checks.integer("samples", samples, low=1)
        self.seed = checks.integer("seed", seed, low=0)
        self.training = model.training
        self._evaluated = 0
        self.register_state_dict_post_hook(_untie)  # type: ignore[no-untyped-call]

    @property
    def config(self) -> Any:
        """The backbone's configuration, which ``Trainer`` and its callbacks read."""
        return getattr(self.model.backbone, "config", None)

    def train(self, mode: bool = True) -> TrainerModel:
        """Set the mode; every evaluation begins with the same draws."""
        self._evaluated = 0
        return super().train(mode)

    @_Forward
    def forward(self, *args: Any, labels: Tensor | None = None, **inputs: Any) -> MaskedOutput:
        """A training pass in train mode, a prediction in eval mode.

        Args:
            *args: Positional arguments of the backbone.
            labels: As ``Trainer`` passes them. Those of a causal language model may be its
                ``input_ids``, with -100 for what is not to be learned, and are shifted here; or
                shifted already.
            **inputs: Keyword arguments of the backbone.
        """
        if labels is not None:
            labels = self._shifted(args, labels, inputs)
        return (self._learn if self.training else self._score)(args, labels, inputs)

    def _shifted(self, args: Any, labels: Tensor, inputs: Any) -> Tensor:
        """Labels that are the tokens of the input, as ``transformers`` takes them, shifted."""
        ignored = getattr(self.model.likelihood, "ignore_index", None)
        call = Call(self.model.backbone, args, inputs)
        if ignored == IGNORED and are_tokens(call, labels, ignored):
            return next_tokens(labels)
        check_shift(call, labels, ignored)
        return labels

    def _learn(self, args: Any, labels: Tensor | None, inputs: Any) -> MaskedOutput:
        if labels is None:
            raise ValueError(
                "labels must be given in training: the masks are learned from them. Label "
                "smoothing and compute_loss_func of Trainer keep them from the model; leave both "
                "out, or call eval()"
            )
        seen: list[Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            seen.append(logits_of(output).detach()[: len(labels)])

        with self.model.backbone.register_forward_hook(keep):
            losses = self.model(*args, y=labels, **inputs)
        parts = {name: getattr(losses, name).detach() for name in ("nll", "tb", "prior")}
        return MaskedOutput(loss=losses.total, logits=seen[0], **parts)

    def _score(self, args: Any, labels: Tensor | None, inputs: Any) -> MaskedOutput:
        source = random.generator(self.seed, "evaluate", self._evaluated)
        self._evaluated += 1
        pred = self.model.predict(*args, samples=self.samples, generator=source, **inputs)
        scored = of_labels(pred, self.model.likelihood)
        loss = None if labels is None else -scored.log_prob(labels).sum() / _counted(pred, labels)
        return MaskedOutput(loss=loss, logits=mean_logits(pred))

    def optimizers(
        self, args: TrainingArguments, *, generator_lr: float = 1e-3, log_z_lr: float = 1e-2
    ) -> tuple[torch.optim.Optimizer, None]:
        """An optimiser for ``Trainer(..., optimizers=...)``, with a learning rate for each part.

        AdamW with the learning rate, decay, betas and epsilon of ``args`` for the backbone
        (no decay for biases and norms); generators have rates of their own. ``Trainer`` makes the
        schedule as ever: it multiplies all rates alike.

        Args:
            args: Of the ``Trainer``.
            generator_lr: Learning rate of the mask generators.
            log_z_lr: Learning rate of the estimate of log Z.
        """
        rates = (args.learning_rate, generator_lr, log_z_lr, args.weight_decay)
        groups: list[dict[str, Any]] = []
        for group in self.model.parameter_groups(*rates):
            learned = [tensor for tensor in group["params"] if tensor.requires_grad]
            matrices = [tensor for tensor in learned if tensor.dim() > 1]
            vectors = [tensor for tensor in learned if tensor.dim() <= 1]
            for tensors, decay in ((matrices, group["weight_decay"]), (vectors, 0.0)):
                if tensors:
                    groups.append({**group, "params": tensors, "weight_decay": decay})
        betas = (args.adam_beta1, args.adam_beta2)
        return torch.optim.AdamW(groups, betas=betas, eps=args.adam_epsilon), None

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Compute layers again in the backward pass, under the masks that they had.

        Args:
            activation_checkpointing_kwargs: Of ``torch.utils.checkpoint.checkpoint``;
                ``use_reentrant`` must be False, which is the default.
            **options: As for the model of ``transformers``.
        """
        chosen = {"use_reentrant": False, **(activation_checkpointing_kwargs or {})}
        if chosen["use_reentrant"]:
            raise ValueError(
                "use_reentrant must be False, got True: reentrant checkpoints lose the gradients "
                "of masks"
            )
        base = base_of(self.model.backbone)
        newer = hasattr(base, "activation_checkpointing_enable")
        (base.activation_checkpointing_enable if newer else base.gradient_checkpointing_enable)(
            chosen, **options
        )

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """The same by its older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **options)


def _counted(pred: Predictive, labels: Tensor) -> int:
    """How many labels a loss of ``transformers`` would be averaged over; examples in regression."""
    likelihood = pred.likelihood
    if not likelihood.has_classes:
        return len(labels)
    if isinstance(likelihood, Categorical) and labels.is_floating_point():
        return labels.numel() // likelihood.classes  # soft labels
    if isinstance(likelihood, Categorical) and likelihood.ignore_index is not None:
        return max(int((labels != likelihood.ignore_index).sum()), 1)
    return labels.numel()


def predict_dataset(
    model: MaskedModel | TrainerModel,
    dataset: Any,
    collate: Callable[[list[Any]], Mapping[str, Any]] | None = None,
    *,
    batch_size: int = 32,
    samples: int = 20,
    seed: int = 0,
) -> Predictive:
    """Predict all of a data set with uncertainty.

    Args:
        model: A wrapped transformer, or what ``Trainer`` trained.
        dataset: As ``Trainer`` takes it: rows are dicts. Labels and columns that the backbone does
            not take are left out.
        collate: Makes a batch of rows, such as ``trainer.data_collator``; ``None`` stacks rows of
            one length.
        batch_size: Rows per batch.
        samples: Draws per row.
        seed: Of the draws; the answer depends on it and on ``batch_size``.

    Returns:
        One prediction, on the CPU. In token classification, batches are padded to the longest
        with logits of 0: leave out positions that are padding.

    Examples:
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> row = {"input_ids": [1, 7, 9], "attention_mask": [1, 1, 1], "labels": 0}
        >>> predict_dataset(model, [row] * 5, batch_size=2)
        Predictive(20 samples, mean [5, 3], Categorical(classes=3))
    """
    masked = model.model if isinstance(model, TrainerModel) else model
    if not isinstance(masked, MaskedModel):
        raise TypeError(f"model must come from wrap_transformer, got {type(model).__name__}")
    checks.integer("batch_size", batch_size, low=1)
    checks.integer("seed", seed, low=0)
    taken = [name for name in parameters(masked.backbone) if name not in LABELS]
    device = next(masked.parameters()).device
    generator = torch.Generator().manual_seed(seed)

    def joined(rows: list[Any]) -> dict[str, Any]:
        kept = [_columns(row, taken) for row in rows]
        try:
            batch = (collate or default_data_collator)(kept)
        except (RuntimeError, TypeError, ValueError) as error:
            if collate is not None:
                raise
            raise ValueError(
                "collate must be given, since rows cannot be stacked as they are (of different "
                f"lengths?): collate=DataCollatorWithPadding(tokenizer), say. {error}"
            ) from error
        return {name: value for name, value in batch.items() if name not in LABELS}

    parts = []
    for batch in DataLoader(dataset, batch_size=batch_size, collate_fn=joined):
        inputs = tree.map_tensors(lambda _, tensor: tensor.to(device), batch)
        parts.append(masked.predict(**inputs, samples=samples, generator=generator).to("cpu"))
    return Predictive.join(_of_one_length(parts))


def _columns(row: Any, taken: Sequence[str]) -> dict[str, Any]:
    """The labels of a row, and the columns that the backbone takes."""
    if not isinstance(row, Mapping):
        raise TypeError(
            f"dataset must have rows that are dicts, got {type(row).__name__}; the backbone takes "
            f"the columns {', '.join(taken)}"
        )
    if not any(name in taken for name in row):
        raise ValueError(
            "dataset must have a column that the backbone takes, got "
            f"{', '.join(map(str, row)) or 'none'}; it takes {', '.join(taken)}"
        )
    return {name: row[name] for name in row if name in taken or name in LABELS}


def _of_one_length(parts: Sequence[Predictive]) -> list[Predictive]:
    """Outputs of sequences, [samples, batch, tokens, ...], padded with 0 to the longest."""
    if parts and parts[0].outputs.dim() > 3:
        longest = max(part.outputs.shape[2] for part in parts)
        padded = [F.pad(p.outputs, (0, 0, 0, longest - p.outputs.shape[2])) for p in parts]
        return [Predictive(outputs, parts[0].likelihood) for outputs in padded]
    return list(parts)


def _untie(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Write tied weights twice: the file format of ``Trainer`` has no shared memory."""
    seen: set[int] = set()
    for key, value in state.items():
        if isinstance(value, Tensor) and value.numel():
            memory = value.untyped_storage().data_ptr()
            state[key] = value.clone() if memory in seen else value
            seen.add(memory)
