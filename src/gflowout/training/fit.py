"""``fit``: train a wrapped model, stop at the right time, survive a kill, keep the best.

A folder makes a run resumable: calling ``fit`` again with the same folder goes on from its last
complete checkpoint and ends in the same weights as a run that was never stopped.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core.ensemble import Ensemble
from gflowout.core.memory_format import warn_of_unsafe_layers
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.training import checkpoints
from gflowout.training.identity import identity, prepare
from gflowout.training.options import FitOptions, choose_precision, ended
from gflowout.training.surroundings import as_before, interruptible, quiet

if TYPE_CHECKING:
    from gflowout.training.module import Unpack

_HISTORY = "gflowout_history"
_PREFIX = "model."
_NEVER = 1 << 30


@dataclass(frozen=True)
class FitResult:
    """What a run came to.

    Attributes:
        history: Numbers of every epoch: losses, log Z, correlation of log q with log R, keep rate
            per site, gradient norms, validation loss.
        best_epoch: The epoch whose weights the model has now, counted from 0.
        best_score: Its validation loss; training loss where nothing was validated.
        stopped: Why it ended: ``"epochs"`` or ``"patience"``.
        seconds: How long this call took; a resumed run counts from its resumption.
        resumed: Epochs that were done already when this call began.
        folder: Where checkpoints and tables are; ``None`` if they were temporary.

    Examples:
        >>> FitResult([{"train/nll": 0.5}, {"train/nll": 0.4}], 1, 0.4, "epochs", 2.0, 0, None)
        FitResult(2 epochs, best 0.4000 at epoch 1, stopped by epochs, 2.0 s)
    """

    history: list[dict[str, float]]
    best_epoch: int
    best_score: float
    stopped: str
    seconds: float
    resumed: int
    folder: Path | None

    def __repr__(self) -> str:
        return (
            f"FitResult({len(self.history)} epochs, best {self.best_score:.4f} at epoch "
            f"{self.best_epoch}, stopped by {self.stopped}, {self.seconds:.1f} s)"
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
) -> FitResult:
    """Train a wrapped model; it has the weights of its best epoch afterwards.

    Args:
        model: From :func:`gflowout.wrap`.
        train: Training batches: :class:`gflowout.data.batches.Batches`, a ``DataLoader``, or any
            iterable with a length. A batch is ``(input, ..., labels)`` or a mapping with
            ``labels``. Only batches whose order follows from the epoch, as those of ``Batches``,
            make a resumed run equal to an undisturbed one.
        valid: Validation batches, for the best epoch and early stopping.
        options: How to train; defaults if ``None``.
        folder: For checkpoints, ``metrics.csv`` and logs. Without one, a run cannot be resumed.
        resume: Go on from the folder's last checkpoint, if it is of the same run: the same
            options, method, sites and data, as far as the first batch of a ``Batches`` and numbers
            of batches tell. ``False`` starts anew, deleting them.
        progress: Show a progress bar.
        loggers: Lightning's loggers, or ``"tensorboard"`` for logs in the folder.
        callbacks: More of Lightning's callbacks.
        unpack: Turns a batch into positional arguments, keyword arguments and labels, where it has
            another form.
        strategy: Lightning's name of how devices work together, such as ``"ddp"``.

    Returns:
        History, best epoch and why it ended.

    Raises:
        DivergedError: If the loss is not finite any more.
        KeyboardInterrupt: After Ctrl-C; complete epochs are in the folder.

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
    _check(model, train, valid, options, folder)
    warn_of_unsafe_layers(model.backbone)
    require("lightning", extra="train", purpose="gflowout.training.fit")
    from gflowout.training import module as modules
    from gflowout.training.callbacks import scores

    lit = modules.MaskedModule(model, options, unpack or modules.unpack)
    data = modules.MaskedDataModule(train, valid)
    with _folder(folder) as place, as_before(model):
        began = time.monotonic()
        saved = place / "checkpoints"
        run = {"options": dataclasses.asdict(options), **identity(model, train, valid)}
        start = prepare(place, saved, run, resume)
        if start is None or ended(options, _scores_of(start)) is None:
            trainer = _trainer(options, place, saved, progress, loggers, callbacks, strategy,
                               valid is not None)  # fmt: skip
            with quiet(), interruptible():
                trainer.fit(lit, datamodule=data, ckpt_path=None if start is None else str(start))
                trainer.strategy.barrier()  # the first rank has written everything
        end = checkpoints.last(saved)
        if end is None:
            raise RuntimeError(f"{saved}: the checkpoints of the run are gone")
        history = checkpoints.read(end)[_HISTORY]
        best, score = _load_best(model, saved, history)
        return FitResult(
            history=history,
            best_epoch=best,
            best_score=score,
            stopped=ended(options, list(scores(history).values())) or "epochs",
            seconds=time.monotonic() - began,
            resumed=0 if start is None else checkpoints.epoch_of(start) + 1,
            folder=None if folder is None else place,
        )


def _check(model: Any, train: Any, valid: Any, options: Any, folder: Any) -> None:
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
    if options.devices * options.nodes > 1 and folder is None:
        raise ValueError(
            f"folder must be given to train with {options.devices * options.nodes} processes: it "
            "is where they meet"
        )
    for name, batches in (("train", train), ("valid", valid)):
        if batches is None and name == "valid":
            continue
        kind = type(batches).__name__
        if not hasattr(batches, "__iter__") or hasattr(batches, "__next__"):
            raise TypeError(
                f"{name} must be batches that can be gone through again and again, such as a "
                f"DataLoader or a list, got {kind}"
            )
        try:
            count = len(batches)
        except TypeError as error:
            raise TypeError(
                f"{name} must have a length, got {kind} without one ({error}); give an iterable "
                "data set a __len__"
            ) from error
        if not count:
            raise ValueError(f"{name} has no batches")


def _trainer(
    options: FitOptions,
    folder: Path,
    saved: Path,
    progress: bool,
    loggers: Sequence[Any] | str,
    callbacks: Sequence[Any],
    strategy: Any,
    validate: bool,
) -> Any:
    """Lightning's trainer."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import Callback

    from gflowout.training.callbacks import Alarms, AtomicIO, KeepBest, Progress, Table

    own: list[Callback] = [KeepBest(saved, options), Table(folder), Alarms()]
    if progress:
        own.append(Progress())
    with quiet():
        return Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.nodes,
            strategy=strategy,
            precision=choose_precision(options),  # type: ignore[arg-type]
            max_epochs=options.epochs,
            limit_val_batches=None if validate else 0,
            logger=_loggers(loggers, folder),
            callbacks=[*own, *callbacks],
            plugins=[AtomicIO()],
            default_root_dir=folder,
            enable_progress_bar=progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=_NEVER,
        )


@contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="gflowout-fit-") as temporary:
        yield Path(temporary)


def _scores_of(checkpoint: Path) -> list[float]:
    from gflowout.training.callbacks import scores

    return list(scores(checkpoints.read(checkpoint)[_HISTORY]).values())


def _load_best(
    model: MaskedModel, saved: Path, history: list[dict[str, float]]
) -> tuple[int, float]:
    from gflowout.training.callbacks import scores

    known = scores(history)
    best = checkpoints.best_epochs(known, 1)[0]
    state = checkpoints.read(checkpoints.path_of(saved, best))["state_dict"]
    own = {name.removeprefix(_PREFIX): value for name, value in state.items()}
    model.load_state_dict(own)
    return best, known[best]


def _loggers(loggers: Sequence[Any] | str, folder: Path) -> Any:
    if loggers == "tensorboard":
        require("tensorboard", extra="train", purpose='loggers="tensorboard"')
        from lightning.pytorch.loggers import TensorBoardLogger

        return [TensorBoardLogger(folder, name="tensorboard", version="")]
    if isinstance(loggers, str):
        raise ValueError(f'loggers must be "tensorboard" or Lightning loggers, got {loggers!r}')
    return list(loggers) or False
