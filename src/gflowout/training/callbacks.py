"""What happens at the end of each epoch: checkpoints, the table of numbers, warnings, progress."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from gflowout.core.method import Method
from gflowout.core.optional import require
from gflowout.training import checkpoints
from gflowout.training.monitoring import ADVICE, DivergedError, TrainingWarning, alarms
from gflowout.training.options import FitOptions, ended
from gflowout.training.signals import Termination

_UPDATE_SECONDS = 0.2

History = list[dict[str, float]]


class AtomicIO(TorchCheckpointIO):
    """Lets Lightning write and read checkpoints the way :mod:`.checkpoints` does."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint that appears when it is complete."""
        checkpoints.write(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read tensors and plain values; nothing else."""
        return checkpoints.read(Path(path), map_location or "cpu")


class EpochEnd(Checkpoint):
    """After each epoch: a checkpoint, ``metrics.csv``, warnings, and the end of the run if due."""

    def __init__(self, folder: Path, options: FitOptions, termination: Termination) -> None:
        super().__init__()
        self.folder, self.options, self.termination = folder, options, termination
        self.reported: set[str] = set()
        self._began = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop epochs from the table that a resumed run will do again."""
        self._report(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the end of the epoch after SIGTERM; several processes leave it to Lightning."""
        if trainer.world_size == 1:
            self.termination.listen()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the time of the epoch."""
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After SIGTERM, give up an epoch that would take too long."""
        if trainer.world_size == 1 and self.termination.signals:
            left = int(trainer.num_training_batches) - batch_idx - 1
            self.termination.after_batch((time.monotonic() - self._began) / (batch_idx + 1) * left)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save; drop what is neither last nor among the best; stop if it is time."""
        odd = [name for name, p in pl_module.named_parameters() if not bool(p.isfinite().all())]
        if odd:  # not to be saved: no run could go on from it
            raise DivergedError(
                f"{odd[0]} and {len(odd) - 1} other parameters are not finite after epoch "
                f"{trainer.current_epoch}. {ADVICE}"
            )
        saved = self.folder / "checkpoints"
        trainer.save_checkpoint(checkpoints.path_of(saved, trainer.current_epoch))
        history = _history(pl_module)
        scores = checkpoints.scores(history)
        if trainer.is_global_zero:
            checkpoints.prune(saved, scores, self.options.keep)
        self._report(trainer, pl_module)
        if ended(self.options, list(scores.values())) is not None:
            trainer.should_stop = True
        if trainer.world_size == 1:
            self.termination.after_checkpoint()

    def _report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the numbers of all epochs, and warn once of each thing that goes wrong."""
        history = _history(pl_module)
        if not trainer.is_global_zero or not history:
            return
        checkpoints.write_table(self.folder, history)
        for name, message in alarms(history, _method(pl_module).balanced).items():
            if name not in self.reported:
                self.reported.add(name)
                warnings.warn(f"epoch {len(history)}: {message}", TrainingWarning, stacklevel=2)


class Progress(Callback):
    """One line for the whole run on the first rank: epoch, losses, time left."""

    def __init__(self) -> None:
        self._next_update = 0.0
        self._bar: Any = None
        self._task: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the line."""
        if not trainer.is_global_zero:
            return
        rich = require("rich.progress", extra="train", purpose="the progress bar")
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=12),
            rich.TaskProgressColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            refresh_per_second=4,
        )
        steps = int(trainer.num_training_batches)
        total, done = (trainer.max_epochs or 1) * steps, trainer.current_epoch * steps
        self._task = self._bar.add_task("training", total=total, completed=done)
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar now and then."""
        if self._bar is not None and time.monotonic() >= self._next_update:
            self._next_update = time.monotonic() + _UPDATE_SECONDS
            done = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx + 1
            self._update(trainer, _history(pl_module), done)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the line as it ends."""
        if self._bar is not None:
            history = _history(pl_module)
            self._update(trainer, history, len(history) * int(trainer.num_training_batches))
            self._bar.stop()

    def on_exception(self, *args: Any) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()

    def _update(self, trainer: Trainer, history: History, done: int) -> None:
        epoch = min(trainer.current_epoch + 1, trainer.max_epochs or 1)
        text = f"epoch {epoch}/{trainer.max_epochs}"
        if history:
            text += f" loss {history[-1]['train/nll']:.3f}"
        if history and checkpoints.MONITOR in history[-1]:
            best = min(checkpoints.scores(history).values())
            text += f" valid {history[-1][checkpoints.MONITOR]:.3f} (best {best:.3f})"
        self._bar.update(self._task, completed=done, description=text)


def _method(module: LightningModule) -> Method:
    model: Any = module.model
    method: Method = model.method
    return method


def _history(module: LightningModule) -> History:
    history: Any = module.history
    return list(history)
