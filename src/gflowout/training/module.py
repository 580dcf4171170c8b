"""A wrapped model as a LightningModule, and its batches as a LightningDataModule.

Optimisation is manual: one backward pass serves all parameters, whose optimisers may differ.
Everything random in an epoch follows from the seed, the epoch and the rank, and so does the
learning rate; a resumed run therefore needs the weights and the optimisers' state alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import lightning
import torch
from torch import Tensor

from gflowout.data import seeds
from gflowout.likelihoods import Binary, Categorical
from gflowout.model import MaskedModel
from gflowout.training.alarms import DivergedError
from gflowout.training.options import FitOptions, optimisers, rate_factor
from gflowout.training.statistics import EVERY, EpochStatistics

Unpack = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any], Tensor]]
"""Turns a batch into positional arguments, keyword arguments and labels."""


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
        raise ValueError(
            f"a batch that is a mapping must have 'y' or 'labels', got {', '.join(map(str, batch))}"
        )
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    raise ValueError(
        "a batch must be (input, ..., labels) or a mapping with 'labels', got "
        f"{type(batch).__name__}; give unpack= for another form"
    )


class MaskedModule(lightning.LightningModule):
    """Trains and validates a wrapped model.

    Args:
        model: From :func:`gflowout.wrap`.
        options: How to train.
        unpack: How to take a batch apart.

    Attributes:
        history: Numbers of every epoch so far, also of those before a resume.
    """

    def __init__(
        self, model: MaskedModel, options: FitOptions | None = None, unpack: Unpack = unpack
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.options = options or FitOptions()
        self.unpack = unpack
        self.history: list[dict[str, float]] = []
        self._statistics = EpochStatistics(model.sites)
        self._optimisers: list[torch.optim.Optimizer] = []
        self._valid = torch.zeros(3)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimiser, or two if backbone and generators have different kinds."""
        self._optimisers = optimisers(self.model, self.options)
        return self._optimisers

    def on_train_epoch_start(self) -> None:
        """Set the random state, the order of the batches and the learning rates of the epoch."""
        epoch = self.current_epoch
        torch.manual_seed(
            seeds.generator(self.options.seed, "epoch", epoch, self.global_rank).initial_seed()
        )
        self._statistics = EpochStatistics(self.model.sites)
        factor = rate_factor(self.options, epoch)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * factor

    def training_step(self, batch: Any, index: int) -> None:
        """One step of all parameters."""
        args, kwargs, y = self.unpack(batch)
        losses = self.model(*args, y=y, **kwargs)
        found: Any = self.optimizers()
        steppers = found if isinstance(found, list) else [found]
        for stepper in steppers:
            stepper.zero_grad()
        self.manual_backward(losses.total)
        look = index % EVERY == 0
        if (look or losses.total.device.type == "cpu") and not math.isfinite(losses.total.item()):
            raise DivergedError(
                f"the loss is {losses.total.item()} in epoch {self.current_epoch}, step {index} "
                f"({losses!r}). Lower lr and generator_lr, set clip (gradient norm, 1.0 is a "
                "start), lower beta, or look for odd values in the data"
            )
        self._statistics.add(losses)
        if look:
            self._statistics.look(losses, self._optimisers)
        for stepper in steppers:
            if self.options.clip is not None:
                self.clip_gradients(stepper, self.options.clip, "norm")
            stepper.step()

    def on_validation_epoch_start(self) -> None:
        """Start the sums anew."""
        self._valid = torch.zeros(3, dtype=torch.float64)

    def validation_step(self, batch: Any, index: int) -> None:
        """Score the average over drawn masks; the draws are the same in every epoch."""
        args, kwargs, y = self.unpack(batch)
        generator = seeds.generator(self.options.seed, "valid", index)
        if self.device.type != "cpu":
            generator = torch.Generator(self.device).manual_seed(generator.initial_seed())
        pred = self.model.predict(
            *args, samples=self.options.valid_samples, generator=generator, **kwargs
        )
        scores = pred.log_prob(y)
        self._valid[0] += len(scores)
        self._valid[1] -= scores.double().sum().cpu()
        hits = _hits(pred.likelihood, pred.mean, y)
        self._valid[2] += math.nan if hits is None else hits

    def on_validation_epoch_end(self) -> None:
        """Log the validation loss, over all ranks."""
        count, nll, hits = self._joint(self._valid, "sum")
        self.log("valid/nll", nll / count)
        if not math.isnan(hits):
            self.log("valid/accuracy", hits / count)

    def on_train_epoch_end(self) -> None:
        """Log the numbers of the epoch and add them to the history."""
        own = self._statistics.numbers()
        joint = self._joint(torch.tensor(list(own.values())), "mean")
        numbers = dict(zip(own, joint, strict=True))
        self.log_dict(numbers)
        valid = {
            name: float(value)
            for name, value in self.trainer.callback_metrics.items()
            if name.startswith("valid/")
        }
        factor = rate_factor(self.options, self.current_epoch)
        self.history.append(
            {"epoch": self.current_epoch, "lr": self.options.lr * factor, **numbers, **valid}
        )

    def _joint(self, values: Tensor, operation: str) -> list[float]:
        """Sums or means over all ranks."""
        single = self.device.type == "mps"  # which has no double precision
        values = values.to(self.device, torch.float32 if single else torch.float64)
        joint: list[float] = self.trainer.strategy.reduce(values, reduce_op=operation).tolist()
        return joint

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the history in the checkpoint."""
        checkpoint["gflowout_history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the history from the checkpoint."""
        self.history = [dict(numbers) for numbers in checkpoint["gflowout_history"]]


class MaskedDataModule(lightning.LightningDataModule):
    """Batches for training, validation and test, from any iterables.

    An iterable with ``set_epoch``, such as :class:`gflowout.data.batches.Batches`, is told the
    epoch; one with ``shard`` gives each rank its share of every batch.

    Args:
        train: Training batches; must have a length.
        valid: Validation batches.
        test: Test batches.
    """

    def __init__(
        self,
        train: Iterable[Any],
        valid: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        self.train, self.valid, self.test = train, valid, test

    def train_dataloader(self) -> Any:
        """Training batches, of this rank."""
        return self._of_rank(self.train)

    def val_dataloader(self) -> Any:
        """Validation batches, of this rank."""
        return [] if self.valid is None else self._of_rank(self.valid)

    def test_dataloader(self) -> Any:
        """Test batches, of this rank."""
        return [] if self.test is None else self._of_rank(self.test)

    @property
    def _world(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    def _of_rank(self, batches: Any) -> Any:
        if self._world > 1 and isinstance(batches, torch.utils.data.DataLoader):
            return batches  # Lightning gives it a sampler for its rank, which knows the epoch
        if self._world > 1 and hasattr(batches, "shard"):
            batches = batches.shard(self.trainer.global_rank, self._world)  # type: ignore[union-attr]
        return _InEpoch(batches, lambda: 0 if self.trainer is None else self.trainer.current_epoch)


class _InEpoch:
    """Batches that start when the first is taken, and are told the epoch then.

    Lightning makes iterators that it does not use, and, after a resume, before it knows the epoch;
    an order drawn from PyTorch's random state must come after the epoch has set that; and a list of
    batches is not taken for a list of loaders.
    """

    def __init__(self, batches: Any, epoch: Callable[[], int]) -> None:
        self.batches, self.epoch = batches, epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(self.epoch())
        yield from self.batches


def _hits(likelihood: Any, mean: Tensor, y: Tensor) -> float | None:
    """How many examples are classified right; ``None`` where there are no classes."""
    if isinstance(likelihood, Categorical) and mean.dim() == 2:
        return float((mean.argmax(-1) == y).sum())
    if isinstance(likelihood, Binary):
        return float(((mean > 0.5) == (y.reshape(mean.shape) > 0.5)).sum())
    return None
