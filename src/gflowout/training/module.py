"""A wrapped model as a LightningModule, and its batches as a LightningDataModule.

Optimisation is manual: one backward pass serves all parameters, whose optimisers may differ.
Everything random in an epoch follows from the seed, the epoch and the rank, and so does the
learning rate; a resumed run therefore needs the weights and the optimisers' state alone.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import lightning
import torch
from torch import Tensor

from gflowout.core import random
from gflowout.core.disagreement import Disagreement
from gflowout.core.likelihoods import Binary, Categorical
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive, of_labels
from gflowout.data.batches import Batches
from gflowout.training.checkpoints import HISTORY
from gflowout.training.monitoring import (
    ADVICE,
    EVERY,
    DivergedError,
    EpochStatistics,
    TrainingWarning,
)
from gflowout.training.options import FitOptions, optimisers, rate_factor

# Turns a batch into positional arguments, keyword arguments and labels.
Unpack = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any], Tensor]]
BLOCK = 8  # batches that Lightning gets at a time where they are in memory


def unpack(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """Take a batch apart: ``(input, ..., labels)``, or a mapping with ``y`` or ``labels``.

    Examples:
        >>> unpack((torch.zeros(2, 3), torch.ones(2)))[2]
        tensor([1., 1.])
        >>> unpack({"input_ids": torch.zeros(2, 3), "labels": torch.ones(2)})[1].keys()
        dict_keys(['input_ids'])
    """
    if isinstance(batch, Mapping):
        for key in ("y", "labels"):
            if key in batch:
                return (), {name: value for name, value in batch.items() if name != key}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    keys = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
    raise ValueError(
        "a batch must be (input, ..., labels) or a mapping with 'y' or 'labels', got "
        f"{type(batch).__name__}{keys}; give unpack= for another form"
    )


def apart(batch: Any, taken: Unpack) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """Take a batch apart by a function of the user's, whose answer is checked."""
    parts: Any = taken(batch)
    if isinstance(parts, tuple) and len(parts) == 3:
        args, kwargs, labels = parts
        if isinstance(args, tuple) and isinstance(kwargs, Mapping):
            return args, dict(kwargs), labels
    shown = f"{type(parts).__name__} of {len(parts)}" if isinstance(parts, tuple) else parts
    raise TypeError(
        "unpack must return a tuple of three: positional arguments (a tuple), keyword "
        f"arguments (a dict) and labels, got {shown!r:.200}"
    )


def inputs_of(
    batch: Any, taken: Unpack, model: MaskedModel
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take a batch apart that may have no labels: a tensor, a tuple or a mapping.

    A tuple with as many elements as the example of the model had arguments has no labels.
    """
    if isinstance(batch, Tensor):
        return (batch,), {}
    if isinstance(batch, tuple | list):
        inputs = len({path.split(".")[0] for path in model.spec.shapes})
        if len(batch) == 1 or (taken is unpack and len(batch) == inputs):
            return tuple(batch), {}
    if isinstance(batch, Mapping) and not {"y", "labels"} & set(batch):
        return (), dict(batch)
    args, kwargs, _ = apart(batch, taken)
    return args, kwargs


class Block(list[Any]):
    """Several batches that Lightning handles as one: what it does around a batch costs time."""


class MaskedModule(lightning.LightningModule):
    """Trains and validates a wrapped model.

    Args:
        model: From :func:`gflowout.wrap`.
        options: How to train.
        unpack: How to take a batch apart.
        disagreement: Term to be added to the loss, if any.

    Attributes:
        history: Numbers of every epoch so far, also of those before a resume.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = torch.nn.Linear(4, 2), torch.zeros(3, 4)
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=gfo.Categorical(2), example=(x,))
        >>> module = MaskedModule(model, FitOptions(lr=1e-2))
        >>> [type(optimiser).__name__ for optimiser in module.configure_optimizers()]
        ['Adam']
    """

    def __init__(
        self,
        model: MaskedModel,
        options: FitOptions | None = None,
        unpack: Unpack = unpack,
        disagreement: Disagreement | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.options = options or FitOptions()
        self.unpack = unpack
        self.disagreement = disagreement
        self.history: list[dict[str, float]] = []
        self._statistics = EpochStatistics(model.sites)
        self._optimisers: list[torch.optim.Optimizer] = []
        self._sums = torch.zeros(3)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimiser, or two if backbone and generators have different kinds."""
        self._optimisers = optimisers(self.model, self.options)
        return self._optimisers

    def on_train_epoch_start(self) -> None:
        """Set the random state, the order of the batches and the learning rates of the epoch."""
        epoch, seed = self.current_epoch, self.options.seed
        torch.manual_seed(random.generator(seed, "epoch", epoch, self.global_rank).initial_seed())
        self._statistics = EpochStatistics(self.model.sites)
        factor = rate_factor(self.options, epoch)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * factor

    def training_step(self, batch: Any, index: int) -> None:
        """One step of all parameters for a batch, or for each batch of a block."""
        for part in batch if isinstance(batch, Block) else (batch,):
            self._step(part)

    def _step(self, batch: Any) -> None:
        args, kwargs, y = apart(batch, self.unpack)
        step = self._statistics.steps
        look = step % EVERY == 0
        with self._checking(look):
            losses = self.model(*args, y=y, **kwargs)
        term = None
        if self.disagreement is not None:
            term = self.disagreement(self.model, *args, **kwargs)
            losses = replace(losses, total=losses.total + term)
        wrapped: Any = self.optimizers()  # one, or a list
        steppers = wrapped if isinstance(wrapped, list) else [wrapped]
        for stepper in steppers:
            stepper.zero_grad()
        self.manual_backward(losses.total)
        if (look or losses.total.device.type == "cpu") and not math.isfinite(losses.total.item()):
            raise DivergedError(
                f"the loss is {losses.total.item()} in epoch {self.current_epoch}, step {step} "
                f"({losses!r}). {ADVICE}"
            )
        self._statistics.add(losses, term)
        if look:
            self._statistics.look(losses, self._optimisers)
        for stepper in steppers:
            if self.options.clip is not None:
                self.clip_gradients(stepper, self.options.clip, "norm")
            stepper.step()

    @contextmanager
    def _checking(self, now: bool) -> Iterator[None]:
        """Check values of labels and outputs: always on a CPU, elsewhere only ``now``.

        A check waits for the device, which would then be idle until the next step is prepared.
        """
        before = self.model.validate
        self.model.validate = before and (now or self.device.type == "cpu")
        try:
            yield
        finally:
            self.model.validate = before

    def on_validation_epoch_start(self) -> None:
        """Start the sums anew, on the device: it is waited for once per epoch."""
        self._sums = torch.zeros(3, dtype=self._double, device=self.device)

    def validation_step(self, batch: Any, index: int) -> None:
        """Score the average over drawn masks; the draws are the same in every epoch."""
        args, kwargs, y = apart(batch, self.unpack)
        with self._checking(index == 0):
            pred = self._predict(args, kwargs, index)
        # Labels of tests are taken for true ones.
        scored = pred if self.trainer.testing else of_labels(pred, self.model.likelihood)
        scores = scored.log_prob(y, values=index == 0 or self.device.type == "cpu")
        self._sums[0] += len(scores)
        self._sums[1] -= scores.to(self._double).sum()
        right = hits(pred.likelihood, pred.mean, y)
        self._sums[2] += math.nan if right is None else right

    def on_validation_epoch_end(self) -> None:
        """Log the loss and the accuracy of the validation or test data, over all ranks."""
        part = "test" if self.trainer.testing else "valid"
        count, nll, right = self._joint(self._sums, "sum")
        self.log(f"{part}/nll", nll / count)
        if not math.isnan(right):
            self.log(f"{part}/accuracy", right / count)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Any, index: int) -> Predictive:
        """The prediction for a batch, labels left out; ``Predictive.join`` joins those of all."""
        args, kwargs = inputs_of(batch, self.unpack, self.model)
        return self._predict(args, kwargs, index)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's own call: the backbone's output, deterministic in eval mode."""
        return self.model(*args, **kwargs)

    def _predict(self, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Predictive:
        # On the CPU: seeds that a device has drawn would have to be waited for.
        generator = random.generator(self.options.seed, "valid", index)
        return self.model.predict(
            *args, samples=self.options.valid_samples, generator=generator, **kwargs
        )

    def on_train_epoch_end(self) -> None:
        """Log the numbers of the epoch and add them to the history."""
        numbers = self._statistics.numbers()
        joint = self._joint(torch.tensor(list(numbers.values())), "mean")
        numbers = dict(zip(numbers, joint, strict=True))
        self.log_dict(numbers)
        metrics = self.trainer.callback_metrics
        valid = {name: float(metrics[name]) for name in metrics if name.startswith("valid/")}
        factor = rate_factor(self.options, self.current_epoch)
        self.history.append(
            {"epoch": self.current_epoch, "lr": self.options.lr * factor, **numbers, **valid}
        )

    @property
    def _double(self) -> torch.dtype:
        """Double precision, which MPS does not have."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def _joint(self, values: Tensor, operation: str) -> list[float]:
        """Sums or means over all ranks."""
        values = values.to(self.device, self._double)
        joint: list[float] = self.trainer.strategy.reduce(values, reduce_op=operation).tolist()
        return joint

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the history in the checkpoint."""
        checkpoint[HISTORY] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the history from the checkpoint."""
        self.history = [dict(numbers) for numbers in checkpoint[HISTORY]]


class MaskedDataModule(lightning.LightningDataModule):
    """Batches for training, validation and test, from any iterables.

    ``set_epoch`` of an iterable, such as :class:`gflowout.data.batches.Batches`, is called in each
    epoch, and ``shard`` gives each rank its share of every batch. Training batches from ``Batches``
    reach Lightning in blocks of :data:`BLOCK`, so its hooks around a batch run once per block.

    Args:
        train: Training batches; must have a length.
        valid: Validation batches.
        test: Test batches.

    Examples:
        >>> x, y = torch.zeros(6, 4), torch.zeros(6, dtype=torch.long)
        >>> data = MaskedDataModule(Batches(x, y, batch_size=2), Batches(x, y, batch_size=3))
        >>> len(data.val_dataloader())
        2
    """

    def __init__(
        self,
        train: Iterable[Any],
        valid: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        self.train, self.valid, self.test = train, valid, test

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Refuse ``None``, which Lightning would skip in training."""
        return unpack(batch) if batch is None else batch

    def train_dataloader(self) -> Any:
        """Training batches, of this rank."""
        ready = isinstance(self.train, Batches) and not getattr(self.train, "workers", 0)
        return self._of_rank(self.train, BLOCK if ready else 1)

    def val_dataloader(self) -> Any:
        """Validation batches, of this rank."""
        return [] if self.valid is None else self._of_rank(self.valid)

    def test_dataloader(self) -> Any:
        """Test batches, of this rank."""
        return [] if self.test is None else self._of_rank(self.test)

    def _of_rank(self, batches: Any, block: int = 1) -> Any:
        trainer = self.trainer
        if trainer is not None and trainer.world_size > 1:
            if isinstance(batches, torch.utils.data.DataLoader):
                return batches  # Lightning gives it a sampler for its rank, which knows the epoch
            if hasattr(batches, "shard"):
                batches = batches.shard(trainer.global_rank, trainer.world_size)
        return _InEpoch(batches, lambda: 0 if trainer is None else trainer.current_epoch, block)


class _InEpoch:
    """Batches that start when the first is taken, with ``set_epoch`` called then.

    Lightning makes iterators that it does not use, and, after a resume, before it knows the epoch;
    an order drawn from PyTorch's random state must come after the epoch has set that; and a list of
    batches is not taken for a list of loaders.
    """

    def __init__(self, batches: Any, epoch: Callable[[], int], block: int = 1) -> None:
        self.batches, self.epoch, self.block = batches, epoch, block
        self.warned = False

    def __len__(self) -> int:
        return -(-len(self.batches) // self.block)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(self.epoch())
        if self.block == 1:
            count = 0
            for batch in self.batches:
                yield batch
                count += 1
            self._check(count)
            return
        stream = iter(self.batches)
        while block := Block(itertools.islice(stream, self.block)):
            yield block

    def _check(self, count: int) -> None:
        if count >= len(self.batches):
            return
        message = (
            f"{type(self.batches).__name__} has a length of {len(self.batches)}, but yielded "
            f"{count} batches in epoch {self.epoch()}"
        )
        if not count:
            raise ValueError(f"{message}: it must be an iterable that can be iterated repeatedly")
        if not self.warned:
            self.warned = True
            warnings.warn(f"{message}: correct its __len__", TrainingWarning, stacklevel=2)


def hits(likelihood: Any, mean: Tensor, y: Tensor) -> Tensor | None:
    """How many examples are classified right, on the device; ``None`` if there are no classes."""
    if isinstance(likelihood, Categorical) and mean.dim() == 2:
        label = y.argmax(-1) if y.is_floating_point() else y  # the likeliest of a soft label
        return (mean.argmax(-1) == label).sum()
    if isinstance(likelihood, Binary):
        return ((mean > 0.5) == (y.reshape(mean.shape) > 0.5)).sum()
    return None
