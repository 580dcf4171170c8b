"""``fit``: train a wrapped model, stop at the right time, survive a kill, keep the best.

A folder makes a run resumable: calling ``fit`` again with the same folder goes on from its last
complete checkpoint and ends in the same weights as a run that was never stopped.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
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

from gflowout.data.batches import Batches
from gflowout.ensemble import Ensemble
from gflowout.extras import require
from gflowout.model import MaskedModel
from gflowout.training import checkpoints
from gflowout.training.options import FitOptions, choose_precision, ended

if TYPE_CHECKING:
    from gflowout.training.module import Unpack

_RUN = "run.json"
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
    require("lightning", extra="train", purpose="gflowout.training.fit")
    from gflowout.training import module as modules
    from gflowout.training.callbacks import scores

    lit = modules.MaskedModule(model, options, unpack or modules.unpack)
    data = modules.MaskedDataModule(train, valid)
    with _folder(folder) as place, _as_before(model):
        began = time.monotonic()
        saved = place / "checkpoints"
        identity = {"options": dataclasses.asdict(options), **_identity(model, train, valid)}
        start = _prepare(place, saved, identity, resume)
        if start is None or ended(options, _scores_of(start)) is None:
            trainer = _trainer(options, place, saved, progress, loggers, callbacks, strategy,
                               valid is not None)  # fmt: skip
            with _quiet(), _interruptible():
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


def _identity(model: MaskedModel, train: Any, valid: Any) -> dict[str, Any]:
    """What tells this run from another in the same folder, beside the options."""
    return {
        "method": {"name": model.method.name, **dataclasses.asdict(model.method.options)},
        "sites": {site.name: site.units for site in model.sites},
        "train": _fingerprint(train),
        "valid": None if valid is None else _fingerprint(valid),
    }


def _fingerprint(batches: Any) -> dict[str, Any]:
    """Number of batches and, where its order is known, what the first one holds."""
    known: dict[str, Any] = {"batches": len(batches)}
    if isinstance(batches, Batches):
        batches.set_epoch(0)
        state = hashlib.sha256()
        for tensor in next(iter(batches)):
            whole = tensor.detach().cpu().contiguous()
            state.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
        batches.set_epoch(0)
        known["first batch"] = state.hexdigest()[:16]
    return known


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


def _prepare(folder: Path, saved: Path, identity: dict[str, Any], resume: bool) -> Path | None:
    """Make the folder fit for the run; return the checkpoint to start from."""
    from lightning.pytorch.utilities import rank_zero_only

    first = not getattr(rank_zero_only, "rank", 0)  # the others must not clean up after it
    wanted: dict[str, Any] = json.loads(json.dumps(identity))
    if first:
        saved.mkdir(parents=True, exist_ok=True)
        checkpoints.clean(saved)
        checkpoints.clean(folder)
    if first and not resume:
        for path in checkpoints.epochs(saved).values():
            path.unlink()
    start = checkpoints.last(saved) if resume else None
    if start is not None:
        _compare(folder, wanted)
    if first:
        text = json.dumps(wanted, indent=1).encode()
        checkpoints.write_bytes(folder / _RUN, lambda stream: stream.write(text))
    return start


def _compare(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse to go on with what is not the same run."""
    try:
        had = json.loads((folder / _RUN).read_text())
        pairs = [(name, dict(had[name] or {}), dict(value or {})) for name, value in wanted.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / _RUN}: missing or damaged, so it cannot be told which run the checkpoints "
            "beside it belong to; take another folder, or resume=False to start anew"
        ) from error
    changed = [
        f"{part}.{name} (was {before.get(name)!r}, is {now.get(name)!r})"
        for part, before, now in pairs
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"folder {folder} holds another run: {', '.join(changed)}. Take another folder, go on "
            "as it began, or resume=False to start anew"
        )


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


@contextmanager
def _as_before(model: MaskedModel) -> Iterator[None]:
    """Train in training mode; then give back modes and precision as they were.

    A model that is in training mode keeps parts of it that are not, such as frozen BatchNorm.
    """
    modes = [(module, module.training) for module in model.modules()]
    kinds = {parameter.dtype for parameter in model.parameters()}
    if not model.training:
        model.train()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        if len(kinds) == 1:
            model.to(dtype=kinds.pop())


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave the caller's random state alone, and keep Lightning's remarks to itself."""
    loud = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loud]
    for logger in loud:
        logger.setLevel(logging.ERROR)
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            for remark in _REMARKS:
                warnings.filterwarnings("ignore", remark)
            yield
    finally:
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
    ".*The number of training batches.*",
    ".*module.s. in eval mode at the start of training.*",
    ".*You called `self.log.*in your `on_train_epoch_end`.*",
    ".*It is recommended to use `self.log.*sync_dist=True.*",
)
