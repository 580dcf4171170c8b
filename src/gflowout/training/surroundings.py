"""What a training run leaves as it found it: modes, precision, random state, signals, warnings."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gflowout.core.model import MaskedModel


@contextmanager
def as_before(model: MaskedModel) -> Iterator[None]:
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
def quiet() -> Iterator[None]:
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
def interruptible() -> Iterator[None]:
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
