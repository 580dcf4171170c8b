"""Train from a configuration, load the trained model, score it; also as the work of a study.

The folder of a run holds ``config.yaml``, ``preprocess.json`` (what is done to inputs),
``checkpoints/`` and ``metrics.csv`` of the training, ``model.safetensors`` (the best epoch) and
``record.json`` (configuration, numbers, versions, machine).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gflowout.app import build, config, evaluation, sources
from gflowout.app.config import Config, ConfigError
from gflowout.app.preprocess import Problem
from gflowout.app.sources import Task
from gflowout.core import checks, serialization
from gflowout.core.atomic_io import write_text
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.data.errors import DataError, MissingDataError
from gflowout.runs import Context, Result, locks, records
from gflowout.runs.spec import Run
from gflowout.runs.work import Task as Attempt
from gflowout.training import FitResult, fit
from gflowout.training.options import check_available

CONFIG, PREPROCESS, MODEL, RECORD = (
    "config.yaml", "preprocess.json", "model.safetensors", "record.json"
)  # fmt: skip
VALID_BATCH = 500  # the same for all runs, since the masks of validation depend on it

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Trained:
    """A trained model and all that is needed to use it."""

    config: Config
    problem: Problem
    model: MaskedModel  # of the best epoch
    folder: Path
    fingerprints: Mapping[str, str]  # checksum of each part of the data it was trained on
    result: FitResult | None = None  # None where the model was loaded
    task: Task | None = field(default=None, repr=False)  # None until data() reads it


def train(
    config: Config,
    folder: str | Path,
    *,
    progress: bool = True,
    resume: bool = True,
    report: Report | None = None,
    task: Task | None = None,
    loggers: Sequence[Any] | str = (),
) -> Trained:
    """Train, or go on where an earlier call with the same folder was stopped.

    Args:
        config: The configuration.
        folder: Of this run alone; created if missing.
        progress: Show a progress bar.
        resume: ``False`` starts anew, deleting what the folder has of an earlier run.
        report: Called with the steps that are done, their total and a word on progress.
        task: The data, if they have been read already.
        loggers: As in :func:`gflowout.training.fit`, such as ``"tensorboard"``.

    Raises:
        ConfigError: If the configuration does not fit the data, or the folder holds another run.
        DataError: If data are missing or damaged.
        DivergedError: If the loss is not finite any more.
        BusyError: If another process trains in this folder.
        KeyboardInterrupt: After Ctrl-C, with all complete epochs saved.
    """
    started, clock = records.now(), time.perf_counter()
    folder = Path(folder)
    try:
        check_available(config.fit.accelerator)
    except ValueError as error:
        raise ConfigError([f"fit.{error}"]) from error
    if resume:
        check_folder(config, folder)
    if task is None:
        task = sources.load(config.data, config.seed)
    batches = task.training(config.data, config.seed)
    model = build.model(config, task.problem, build.example(task))
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if not resume:
            for name in (CONFIG, PREPROCESS, MODEL, RECORD):
                (folder / name).unlink(missing_ok=True)
        _prepare(folder, config, task)
        result = fit(
            model,
            batches,
            task.valid.batches(task.problem, VALID_BATCH),
            config.fit,
            folder=folder,
            resume=resume,
            progress=progress,
            loggers=loggers,
            callbacks=[] if report is None else [_reporter(report)],
        )
        if not (folder / MODEL).is_file() or not (folder / RECORD).is_file():
            serialization.save(model, folder / MODEL)
            _record(folder, config, task, result, started, time.perf_counter() - clock)
    model.to(_device(config))
    return Trained(config, task.problem, model, folder, task.fingerprints, result, task)


def load(folder: str | Path) -> Trained:
    """Rebuild what :func:`train` left in a folder; the data are not needed.

    Raises:
        MissingDataError: If the folder holds no trained model.
        DataError: If a file of it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingDataError(f"{folder}: no such folder; `gflowout train --out` makes one")
    lacking = [name for name in (CONFIG, PREPROCESS, MODEL) if not (folder / name).is_file()]
    if lacking == [MODEL]:
        again = f"gflowout train --config {folder / CONFIG} --out {folder}"
        raise MissingDataError(f"{folder}: training is not complete; go on with: {again}")
    if lacking:
        raise MissingDataError(f"{folder}: not the folder of a run, it misses {', '.join(lacking)}")
    try:
        settings = config.read(folder / CONFIG)
        problem, fingerprints = _prepared(folder / PREPROCESS)
        with torch.random.fork_rng(devices=[]):
            network = build.backbone(settings.backbone, problem)
        model = serialization.load(folder / MODEL, network)
    except DataError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: cannot be loaded ({error})") from error
    model.eval().to(_device(settings))
    return Trained(settings, problem, model, folder, fingerprints)


def data(trained: Trained, data_dir: str | Path | None = None) -> tuple[Task, list[str]]:
    """Read the data of a trained model again; also names the parts that have changed since."""
    task = trained.task
    if task is None:
        section = trained.config.data
        if data_dir is not None:
            section = section.model_copy(update={"directory": str(data_dir)})
        task = sources.load(section, trained.config.seed)
    now, before = task.fingerprints, trained.fingerprints
    return task, [name for name in now if now[name] != before.get(name)]


def evaluate(
    trained: Trained, *, split: str = "test", data_dir: str | Path | None = None, **options: Any
) -> dict[str, float]:
    """Scores of a trained model on the ``"train"``, ``"valid"`` or ``"test"`` part of its own data.

    ``data_dir`` is the directory of all data sets, where it is another now; ``options`` are those
    of :func:`gflowout.app.evaluation.evaluate`.
    """
    checks.choice("split", split, sources.SPLITS)
    task, _ = data(trained, data_dir)
    directory = data_dir if data_dir is not None else trained.config.data.directory
    return evaluation.evaluate(
        trained.model, trained.problem, task.part(split), data_dir=directory, **options
    )


def work(run: Run, context: Context) -> Result:
    """One run of a study.

    ``run.options`` is a flat configuration (see :func:`gflowout.app.config.flat`); what it
    leaves out of method, data source and seed is the run's own. ``"test": True`` adds scores on the
    test part, ``"samples"`` is the number of draws for all scores (20).
    """
    options = dict(run.options)
    test, samples = options.pop("test", False), options.pop("samples", 20)
    defaults = {"method.name": run.method, "data.source": run.data, "seed": run.seed}
    for key in ("method.name", "seed"):
        if options.get(key, defaults[key]) != defaults[key]:
            raise ValueError(
                f"{key} is {defaults[key]!r} in the run, and {options[key]!r} in its options"
            )
    settings = config.from_flat(defaults | options)
    trained = train(settings, context.folder, progress=False, report=context.progress)
    assert trained.result is not None
    history, best = trained.result.history, trained.result.best_epoch
    metrics: dict[str, float] = {"epochs_trained": len(history), "best_epoch": best}
    for split in ("valid", "test") if test else ("valid",):
        scores = evaluate(trained, split=split, samples=samples)
        metrics |= {f"{split}/{name}": value for name, value in scores.items()}
    return {"metrics": metrics, "epochs": [*history], "data": dict(trained.fingerprints)}


def check_folder(settings: Config, folder: Path) -> None:
    """Refuse a folder that holds a run of another configuration, with every key that differs."""
    if not (folder / CONFIG).is_file():
        return
    try:
        before = config.flat(config.read(folder / CONFIG))
    except ConfigError as error:
        raise ConfigError([f"{folder / CONFIG}: {line}" for line in error.problems]) from error
    now = config.flat(settings)
    problems = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key != "data.directory"
    ]
    if problems:
        raise ConfigError(
            [f"{folder} holds a run with another configuration:", *problems,
             "take another folder, the same configuration, or start anew with --restart"]
        )  # fmt: skip


def _prepare(folder: Path, settings: Config, task: Task) -> None:
    """Write what a run starts from; refuse to go on with other data."""
    path = folder / PREPROCESS
    if path.is_file() and _prepared(path)[1] != task.fingerprints:
        raise DataError(
            f"{folder}: the data differ from those that this run started with; take another "
            "folder, or start anew with --restart"
        )
    content = {**task.problem.to_dict(), "fingerprints": task.fingerprints}
    write_text(path, json.dumps(content, indent=1))
    config.write(settings, folder / CONFIG)


def _prepared(path: Path) -> tuple[Problem, dict[str, str]]:
    """What ``preprocess.json`` says of inputs and labels, and the checksums of the data."""
    try:
        content = json.loads(path.read_text())
        return Problem.from_dict(content), dict(content["fingerprints"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(
            f"{path}: damaged ({why}); put back a copy, or train again with --restart"
        ) from error


def _record(
    folder: Path, settings: Config, task: Task, result: FitResult, started: Any, seconds: float
) -> None:
    method, source = settings.method.name, settings.data.source
    best = result.history[result.best_epoch]
    metrics: dict[str, float] = {
        "best_epoch": result.best_epoch,
        "epochs_trained": len(result.history),
        **{name: value for name, value in best.items() if name.startswith("valid/")},
    }
    run = Run("train", method, source, settings.seed, config.flat(settings))
    attempt = Attempt("gflowout.app.run:train", run, folder, threads=torch.get_num_threads())
    outcome = {"metrics": metrics, "epochs": result.history, "data": task.fingerprints}
    write_text(folder / RECORD, records.to_text(attempt.record(started, seconds, result=outcome)))


def _lock(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder against other runs; of several ranks, the first takes the lock."""
    ranks = (os.environ.get(name, "0") for name in ("LOCAL_RANK", "NODE_RANK", "RANK"))
    if "LOCAL_RANK" in os.environ and any(rank != "0" for rank in ranks):
        return nullcontext()
    return locks.hold(folder / ".training.lock", doing="another process trains here")


def _device(settings: Config) -> str:
    """Where to predict: an accelerator if there is one and training may use it."""
    wanted = settings.fit.accelerator in ("auto", "gpu", "cuda")
    return "cuda" if wanted and torch.cuda.is_available() else "cpu"


def _reporter(report: Report) -> Any:
    callbacks = require("lightning.pytorch.callbacks", extra="train", purpose="training")

    def batch_ended(trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        steps, epochs = int(trainer.num_training_batches), int(trainer.max_epochs)
        done = trainer.current_epoch * steps + index + 1
        report(done, epochs * steps, f"epoch {trainer.current_epoch + 1}/{epochs}")

    return callbacks.LambdaCallback(on_train_batch_end=batch_ended)
