"""``fit``: train a wrapped model, stop at the right time, survive a kill, keep the best.

A folder makes a run resumable: calling ``fit`` again with the same folder goes on from its last
complete checkpoint and ends in the same weights as a run that was never stopped.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gflowout.extras import require
from gflowout.model import MaskedModel
from gflowout.training import checkpoints
from gflowout.training.options import FitOptions, choose_precision

if TYPE_CHECKING:
    from gflowout.training.module import Unpack

_OPTIONS = "options.json"
_DONE = "done.json"
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
        resume: Go on from the folder's last checkpoint. ``False`` starts anew, deleting them.
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
    if not isinstance(model, MaskedModel):
        raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
    options = options or FitOptions()
    if not isinstance(options, FitOptions):
        raise TypeError(f"options must be FitOptions or None, got {type(options).__name__}")
    if options.patience is not None and valid is None:
        raise ValueError(f"patience={options.patience} needs valid, got valid=None")
    if options.devices * options.nodes > 1 and folder is None:
        raise ValueError(
            f"folder must be given to train with {options.devices * options.nodes} processes: it "
            "is where they meet"
        )
    require("lightning", extra="train", purpose="gflowout.training.fit")
    from gflowout.training import module as modules

    lit = modules.MaskedModule(model, options, unpack or modules.unpack)
    data = modules.MaskedDataModule(train, valid)
    with _folder(folder) as place:
        began = time.monotonic()
        saved = place / "checkpoints"
        start = _prepare(place, saved, options, resume)
        if start is None or not (place / _DONE).exists():
            trainer = _trainer(options, place, saved, progress, loggers, callbacks, strategy,
                               valid is not None)  # fmt: skip
            with _quiet(), _interruptible():
                trainer.fit(lit, datamodule=data, ckpt_path=None if start is None else str(start))
                trainer.strategy.barrier()  # the first rank has written everything
            if trainer.is_global_zero:
                _write_json(place / _DONE, {"epochs": trainer.current_epoch})
        end = checkpoints.last(saved)
        if end is None:
            raise RuntimeError(f"{saved}: the checkpoints of the run are gone")
        history = checkpoints.read(end)["gflowout_history"]
        best, score = _load_best(model, saved, history)
        return FitResult(
            history=history,
            best_epoch=best,
            best_score=score,
            stopped="epochs" if len(history) == options.epochs else "patience",
            seconds=time.monotonic() - began,
            resumed=0 if start is None else checkpoints.epoch_of(start) + 1,
            folder=None if folder is None else place,
        )


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
    from lightning.pytorch.callbacks import Callback, EarlyStopping

    from gflowout.training.callbacks import MONITOR, Alarms, AtomicIO, KeepBest, Progress, Table

    own: list[Callback] = [KeepBest(saved, options.keep), Table(folder), Alarms()]
    if options.patience is not None:
        own.append(EarlyStopping(MONITOR, options.min_delta, options.patience, check_finite=False))
    if progress:
        own.append(Progress())
    with _quiet():
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


def _prepare(folder: Path, saved: Path, options: FitOptions, resume: bool) -> Path | None:
    """Make the folder fit for the run; return the checkpoint to start from."""
    from lightning.pytorch.utilities import rank_zero_only

    first = not getattr(rank_zero_only, "rank", 0)  # the others must not clean up after it
    wanted = json.loads(json.dumps(dataclasses.asdict(options)))
    if first:
        saved.mkdir(parents=True, exist_ok=True)
        checkpoints.clean(saved)
        checkpoints.clean(folder)
    if first and not resume:
        (folder / _DONE).unlink(missing_ok=True)
        for path in checkpoints.epochs(saved).values():
            path.unlink()
    start = checkpoints.last(saved) if resume else None
    had = _read_json(folder / _OPTIONS)
    if start is not None and had is not None and had != wanted:
        changed = ", ".join(
            f"{name} (was {had.get(name)!r}, is {wanted[name]!r})"
            for name in wanted
            if had.get(name) != wanted[name]
        )
        raise ValueError(
            f"folder {folder} holds a run with other options: {changed}. Take another folder, the "
            "same options, or resume=False to start anew"
        )
    if first:
        _write_json(folder / _OPTIONS, wanted)
    return start


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


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1).encode()
    checkpoints.write_bytes(path, lambda stream: stream.write(text))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave the caller's random state alone, and keep Lightning's remarks to itself."""
    random = torch.get_rng_state()
    loud = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loud]
    for logger in loud:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for remark in _REMARKS:
                warnings.filterwarnings("ignore", remark)
            yield
    finally:
        torch.set_rng_state(random)
        for logger, level in zip(loud, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lightning ends the process after Ctrl-C, and ignores it from then on: undo both."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


_REMARKS = (
    ".*does not have many workers",
    ".*Checkpoint directory .* exists and is not empty",
    ".*treespec, LeafSpec.*",
    ".*You called `self.log.*in your `on_train_epoch_end`.*",
    ".*It is recommended to use `self.log.*sync_dist=True.*",
)
