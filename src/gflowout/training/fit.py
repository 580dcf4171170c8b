"""``fit``: train a wrapped model, stop at the right time, survive a kill, keep the best."""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gflowout.core.disagreement import Disagreement, check_term
from gflowout.core.ensemble import Ensemble
from gflowout.core.memory_format import warn_of_unsafe_layers
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.training import checkpoints
from gflowout.training.options import FitOptions, check_available, choose_precision, ended
from gflowout.training.signals import interruptible
from gflowout.training.train_size import take_train_size

if TYPE_CHECKING:
    from gflowout.training.module import MaskedDataModule, MaskedModule, Unpack

_LIGHTNING_REMARKS = (
    ".*does not have many workers",
    ".*Checkpoint directory .* exists and is not empty",
    ".*treespec, LeafSpec.*",
    ".*The number of training batches.*",
    ".*module.s. in eval mode at the start of training.*",
    ".*You called `self.log.*in your `on_train_epoch_end`.*",
    ".*It is recommended to use `self.log.*sync_dist=True.*",
)


@dataclass(frozen=True)
class FitResult:
    """How a run went.

    Attributes:
        history: Numbers of every epoch: losses, log Z, KL(q || p), correlation of log q -
            log p with the log-likelihood, keep rate per site, gradient norms, validation loss.
        best_epoch: The epoch whose weights the model has now, counted from 0.
        best_score: Its validation loss; training loss where nothing was validated.
        stopped: Why it ended: ``"epochs"`` or ``"patience"``.
        seconds: How long this call took; a resumed run counts from its resumption.
        resumed: Epochs that were done already when this call began.
        folder: Where checkpoints and tables are; ``None`` if they were temporary.

    Examples:
        >>> FitResult([{"train/nll": 0.5}, {"train/nll": 0.4}], 1, 0.4, "epochs", 2.0, 0, None)
        FitResult(2 epochs, best 0.4000 at epoch 1, reached the last epoch, 2.0 s)
    """

    history: list[dict[str, float]]
    best_epoch: int
    best_score: float
    stopped: str
    seconds: float
    resumed: int
    folder: Path | None

    def __repr__(self) -> str:
        epochs = "1 epoch" if len(self.history) == 1 else f"{len(self.history)} epochs"
        end = "reached the last epoch" if self.stopped == "epochs" else f"stopped by {self.stopped}"
        return (
            f"FitResult({epochs}, best {self.best_score:.4f} at epoch {self.best_epoch}, {end}, "
            f"{self.seconds:.1f} s)"
        )


def fit(
    model: MaskedModel,
    train: Iterable[Any],
    valid: Iterable[Any] | None = None,
    options: FitOptions | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    loggers: Sequence[Any] | str = (),
    callbacks: Sequence[Any] = (),
    unpack: Unpack | None = None,
    strategy: Any = "auto",
    disagreement: Disagreement | None = None,
) -> FitResult:
    """Train a wrapped model; it has the weights of its best epoch afterwards.

    Args:
        model: From :func:`gflowout.wrap`.
        train: Training batches: :class:`gflowout.data.batches.Batches`, a ``DataLoader``, or any
            iterable with a length. A batch is ``(input, ..., labels)`` or a mapping with
            ``labels``. Only batches whose order follows from the epoch, as those of ``Batches``,
            make a resumed run equal to an undisturbed one. A ``train_size`` that the method needs
            and was not given is the number of examples in them.
        valid: Validation batches, for the best epoch and early stopping.
        options: How to train; defaults if ``None``.
        folder: For checkpoints, ``metrics.csv`` and logs. Without one, a run cannot be resumed.
        resume: Go on from the folder's last checkpoint, if it is of the same run: the same
            options, method, sites and data, as far as the first batch of a ``Batches`` and numbers
            of batches tell. ``False`` starts anew, deleting them.
        progress: Show a progress bar.
        loggers: Lightning's loggers, or ``"tensorboard"`` for logs in the folder.
        callbacks: More of Lightning's callbacks.
        unpack: Turns a batch of another form into positional arguments, keyword arguments, labels.
        strategy: Lightning's name of how devices work together, such as ``"ddp"``.
        disagreement: Term that is added to the loss, such as ``gfo.Disagreement(0.1)``.

    Raises:
        DivergedError: If the loss is not finite any more.
        KeyboardInterrupt: After Ctrl-C; complete epochs are in the folder.
        TerminatedError: After SIGTERM, at the end of the epoch if near; complete epochs are saved.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x[:2],))
        >>> batches = DataLoader(TensorDataset(x, y), batch_size=16)
        >>> result = fit(model, batches, options=FitOptions(epochs=2), progress=False)
        >>> len(result.history), result.stopped
        (2, 'epochs')
    """
    options = options or FitOptions()
    _check(model, train, valid, options, folder, disagreement)
    warn_of_unsafe_layers(model.backbone)
    from gflowout.training import module as modules

    began = time.monotonic()
    unpack = unpack or modules.unpack
    take_train_size(model, train, lambda batch: unpack(batch)[-1])
    lit = modules.MaskedModule(model, options, unpack, disagreement)
    data = modules.MaskedDataModule(train, valid)
    with _directory(folder) as place, _modes_restored(model):
        saved = place / "checkpoints"
        run = checkpoints.identity(model, options, train, valid, disagreement)
        start = checkpoints.prepare(place, saved, run, resume)
        if start is not None and _ended(options, checkpoints.history(start)) is not None:
            checkpoints.complete(place, saved, start, options.keep)
        else:
            _train(
                lit, data, place, start, _how_to_go_on(folder),
                progress=progress, loggers=loggers, callbacks=callbacks, strategy=strategy,
            )  # fmt: skip
        history, best, score = _load_best(model, saved)
    stopped = _ended(options, history) or "epochs"
    resumed = 0 if start is None else checkpoints.epoch_of(start) + 1
    kept = None if folder is None else place
    return FitResult(history, best, score, stopped, time.monotonic() - began, resumed, kept)


def _check(
    model: Any, train: Any, valid: Any, options: Any, folder: Any, disagreement: Any
) -> None:
    """Refuse what cannot be trained, before anything is written."""
    if isinstance(model, Ensemble):
        raise TypeError(
            "model must be one model: train an Ensemble by a call of fit for each of its .members"
        )
    if not isinstance(model, MaskedModel):
        raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
    if not isinstance(options, FitOptions):
        raise TypeError(f"options must be FitOptions or None, got {type(options).__name__}")
    if options.patience is not None and valid is None:
        raise ValueError(f"patience={options.patience} needs valid, got valid=None")
    processes = options.devices * options.nodes
    if processes > 1 and folder is None:
        raise ValueError(f"folder must be given to train with {processes} processes: they share it")
    for name, batches in {"train": train, **({} if valid is None else {"valid": valid})}.items():
        kind = type(batches).__name__
        if not hasattr(batches, "__iter__") or hasattr(batches, "__next__"):
            raise TypeError(
                f"{name} must be an iterable of batches that can be iterated repeatedly, such as a "
                f"DataLoader or a list, got {kind}"
            )
        try:
            count = len(batches)
        except TypeError as error:
            raise TypeError(
                f"{name} must have a length, got {kind} without one ({error})"
            ) from error
        if not count:
            raise ValueError(f"{name} must hold at least one batch, got none")
    if disagreement is not None:
        check_term(disagreement, model)
    require("lightning", extra="train", purpose="gflowout.training.fit")
    check_available(options.accelerator)


def _train(
    lit: MaskedModule,
    data: MaskedDataModule,
    folder: Path,
    start: Path | None,
    how_to_go_on: str,
    *,
    progress: bool,
    loggers: Sequence[Any] | str,
    callbacks: Sequence[Any],
    strategy: Any,
) -> None:
    """Train by Lightning, from a checkpoint on if there is one."""
    from lightning.pytorch import Trainer

    from gflowout.training.callbacks import AtomicIO, EpochEnd, Progress

    options = lit.options
    with _quiet(), interruptible(how_to_go_on) as termination:
        own = [EpochEnd(folder, options, termination), *([Progress()] if progress else [])]
        trainer = Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.nodes,
            strategy=strategy,
            precision=choose_precision(options),  # type: ignore[arg-type]
            max_epochs=options.epochs,
            limit_val_batches=None if data.valid is not None else 0,
            logger=_loggers(loggers, folder),
            callbacks=[*own, *callbacks],
            plugins=[AtomicIO()],
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1 << 30,  # never: numbers are logged at the end of each epoch
        )
        trainer.fit(lit, datamodule=data, ckpt_path=None if start is None else str(start))
        trainer.strategy.barrier()  # the first rank has written everything


def _loggers(loggers: Sequence[Any] | str, folder: Path) -> Any:
    if loggers == "tensorboard":
        require("tensorboard", extra="train", purpose='loggers="tensorboard"')
        from lightning.pytorch.loggers import TensorBoardLogger

        return [TensorBoardLogger(folder, name="tensorboard", version="")]
    if isinstance(loggers, str):
        raise ValueError(f'loggers must be "tensorboard" or Lightning loggers, got {loggers!r}')
    return list(loggers) or False


@contextmanager
def _directory(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="gflowout-fit-") as name:
        yield Path(name)


def _how_to_go_on(folder: str | Path | None) -> str:
    if folder is None:
        return "nothing is saved: fit has no folder"
    return f"complete epochs are in {folder}: call fit again with the same arguments to go on"


def _ended(options: FitOptions, history: list[dict[str, float]]) -> str | None:
    return ended(options, list(checkpoints.scores(history).values()))


def _load_best(model: MaskedModel, saved: Path) -> tuple[list[dict[str, float]], int, float]:
    """Load the weights of the best epoch; return the history, that epoch and its score."""
    checkpoint = checkpoints.latest(saved)
    if checkpoint is None:
        raise RuntimeError(f"{saved}: the checkpoints of the run are gone")
    _, history, state = checkpoint
    by_epoch = checkpoints.scores(history)
    best = checkpoints.best_epochs(by_epoch, 1)[0]
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    return history, best, by_epoch[best]


@contextmanager
def _modes_restored(model: MaskedModel) -> Iterator[None]:
    """Train in training mode; restore the modes and the precision afterwards.

    A model that is in training mode keeps parts of it that are not, such as frozen BatchNorm.
    """
    modes = [(module, module.training) for module in model.modules()]
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if not model.training:
        model.train()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        if len(dtypes) == 1:
            model.to(dtype=dtypes.pop())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the caller's random state, and silence Lightning's remarks."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = {logger: logger.level for logger in loggers}
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            for remark in _LIGHTNING_REMARKS:
                warnings.filterwarnings("ignore", remark)
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
