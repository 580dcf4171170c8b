"""What a study will do: its plan at a preset, a part of it, and what its runs will cost."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.core.text import duration
from gflowout.data.store import ENTRIES
from gflowout.runs import Engine, Inline, Pool, Run, records
from gflowout.runs.spec import canonical
from gflowout.runs.work import Report, Task, execute
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import Options
from gflowout.studies.framework.study import PRESETS, Chosen, Study

Pair = tuple[str, str]
"""Data and arm."""

WHOLE = "all"
"""``Run.method`` of a study whose runs each have all methods."""


@dataclass(frozen=True)
class Part:
    """Which runs of a study are wanted; ``None`` for all."""

    methods: Collection[str] | None = None  # labels of arms
    data: Collection[str] | None = None
    seeds: Collection[int] | None = None

    def has(self, run: Run) -> bool:
        """Whether a run is wanted."""
        seed = self.seeds is None or run.seed in self.seeds
        return seed and self.has_pair((run.data, run.method))

    def has_pair(self, pair: Pair) -> bool:
        """Whether data and arm are wanted."""
        data, method = pair
        return (self.data is None or data in self.data) and (
            self.methods is None or method in self.methods
        )


@dataclass(frozen=True)
class Plan:
    """Trials and runs of a study at a preset.

    Runs have the options that the trials of their arm have chosen, or, before those are done, what
    the first of them tries: as many, and about as long.
    """

    trials: list[Run]  # they come first
    runs: list[Run]
    tuned: bool  # whether the runs are those that will be done


def restricted(study: Study, part: Part) -> Study:
    """The study with some of its runs only, and the trials that these need.

    A run is the same as in the whole study: same options, same record. So a part can be done first
    and the rest later.
    """

    def tuning(preset: str) -> list[Run]:
        trials = study.tuning(preset)
        first, last = _first(trials), _first(trials[::-1])
        pairs = {pair for pair in first if part.has_pair(pair)}

        def kept(chosen: Chosen) -> list[Run]:
            return [run for run in study.runs(preset, chosen) if part.has(run)]

        # A run may need the choice of another arm or other data: then another choice makes another
        # run. All at once first, since that is rare.
        others = {pair: options for pair, options in last.items() if pair not in pairs}
        before = kept(first) if others else []
        if others and kept({**first, **others}) != before:
            pairs |= {
                pair for pair, options in others.items() if kept({**first, pair: options}) != before
            }
        return [trial for trial in trials if (trial.data, trial.method) in pairs]

    def runs(preset: str, chosen: Chosen) -> list[Run]:
        whole = {**_first(study.tuning(preset)), **chosen}
        return [run for run in study.runs(preset, whole) if part.has(run)]

    return dataclasses.replace(study, tuning=tuning, runs=runs)


def widened(study: Study, others: Sequence[str]) -> Study:
    """The study with runs that are tested against other data, too, given by name or path."""

    def runs(preset: str, chosen: Chosen) -> list[Run]:
        return [_widened(run, others) for run in study.runs(preset, chosen)]

    return dataclasses.replace(study, runs=runs)


def _widened(run: Run, others: Sequence[str]) -> Run:
    options = run.to_dict()["options"]
    against = [*options["against"], *(name for name in others if name not in options["against"])]
    return Run(run.study, run.method, run.data, run.seed, {**options, "against": against})


def plan(study: Study, preset: str, folder: Path) -> Plan:
    """What a study, or a part of it, will do in a folder of records."""
    checks.choice("preset", preset, PRESETS)
    trials = study.tuning(preset)
    done = records.finished(folder) if folder.is_dir() else set()
    waiting = {(trial.data, trial.method) for trial in trials if trial.id not in done}
    ready = [trial for trial in trials if (trial.data, trial.method) not in waiting]
    tuned, choice = not waiting, _first(trials)
    try:
        choice |= studies.chosen(ready, folder, study.score)
    except ValueError:  # nothing to choose from, which the study says when it is run
        tuned = False
    return Plan(trials, study.runs(preset, choice), tuned)


def check(part: Part, runs: Sequence[Run], prefix: str = "") -> None:
    """Raise a ValueError that lists what there is if no run has a wanted name or seed.

    The prefix comes before a name in messages: dashes if it is an option of a command.
    """
    for option, wanted, available in (
        ("methods", part.methods, list(dict.fromkeys(run.method for run in runs))),
        ("data", part.data, list(dict.fromkeys(run.data for run in runs))),
        ("seeds", part.seeds, sorted({run.seed for run in runs})),
    ):
        for value in wanted or ():
            if value not in available and available == [WHOLE]:
                raise ValueError(
                    f"{prefix}{option} must be left out: this study does all of them in one run, "
                    f"got {value}"
                )
            if value not in available:
                names = [*map(str, available)]
                near = checks.suggest(value, names) if isinstance(value, str) else ""
                raise ValueError(
                    f"{prefix}{option} must be among {', '.join(names)}, got {value}{near}"
                )
    if runs and not any(part.has(run) for run in runs):
        names = [f"{prefix}{name}" for name in ("methods", "data", "seeds")]
        raise ValueError(f"no run has these {names[0]}, {names[1]} and {names[2]} together")


def _first(trials: Sequence[Run]) -> dict[Pair, Options]:
    """By data and arm what the first trial tries."""
    first = {(trial.data, trial.method): trial for trial in reversed(trials)}
    return {pair: trial.to_dict()["options"].get("tuned", {}) for pair, trial in first.items()}


def presets_of(study: Study, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The presets that plan the runs of records, which do not say so; none if no preset does.

    What trials have chosen does not matter. A run that several presets plan alike counts for the
    first of them, unless another run tells them apart.
    """
    plans = {preset: {_key(run.to_dict()) for run in study.runs(preset, {})} for preset in PRESETS}
    keys = {_key(record) for record in records}
    fitting = {tuple(name for name in PRESETS if key in plans[name]) for key in keys} - {()}
    sure = {names[0] for names in fitting if len(names) == 1}
    for names in fitting:
        if not sure.intersection(names):
            sure.add(names[0])
    return [name for name in PRESETS if name in sure]


def _key(run: Mapping[str, Any]) -> str:
    chosen = ("tuned", "partner")
    options = {name: value for name, value in run["options"].items() if name not in chosen}
    if "against" in options:  # paths are the user's own, not the preset's
        options["against"] = [name for name in options["against"] if name in ENTRIES]
    return canonical([run["method"], run["data"], run["seed"], options])


# What runs cost

EPOCHS = "fit.epochs"
Kind = tuple[str, str]
"""Method and data, or the like: what runs of about the same cost have in common."""

Sort = Callable[[Run], Kind]


def by_method(run: Run) -> Kind:
    """Method and data of a run."""
    return run.method, run.data


@dataclass(frozen=True)
class Price:
    """Seconds of one run of a kind, and how they are known."""

    seconds: float | None
    source: str


def from_records(folder: Path, studies: Iterable[str], sort: Sort = by_method) -> dict[Kind, Price]:
    """Mean seconds of the runs that are done in a folder, by kind."""
    wanted, spent = set(studies), dict[Kind, list[float]]()
    for record in records.read(folder, records.DONE) if folder.is_dir() else ():
        if record["study"] in wanted:
            spent.setdefault(sort(Run.from_dict(record)), []).append(record["seconds"])
    return {
        kind: Price(sum(seconds) / len(seconds), f"mean of {len(seconds)} done")
        for kind, seconds in spent.items()
    }


def measure(run: Run, work: str, engine: Engine | None = None) -> Price:
    """Do two epochs of a run here and now, in a temporary folder; the others take as long.

    What comes before, such as reading data, is counted once, and so is the start of a process. The
    first run of all is done twice: it also loads libraries. A run that does not report its progress
    is taken to spend all its time in epochs, which makes the price too high.
    """
    options = run.to_dict()["options"]
    # Studies of the paper keep the configuration of all their arms under one key.
    place = options.get("base") if isinstance(options.get("base"), dict) else options
    epochs = place.get(EPOCHS)
    if not isinstance(epochs, int):
        return Price(None, "not known before a run is done")
    few = min(epochs, 2)
    place[EPOCHS] = few
    short = Run(run.study, run.method, run.data, run.seed, options)
    if work not in _warm:  # the first run also loads libraries
        _warm.add(work)
        _execute(short, work, lambda *_: None)
    half, last = list[float](), list[float]()

    def note_times(step: int, steps: int, message: str) -> None:
        if step in (steps, steps / 2):
            (last if step == steps else half).append(time.perf_counter())

    record = _execute(short, work, note_times)
    if record["error"] is not None:
        return Price(None, f"a short run failed: {record['error']['message']}")
    whole, start = float(record["seconds"]), starting(engine)
    if few == epochs:
        return Price(start + whole, "measured once")
    if half and last:
        rest = (epochs - few) * (last[0] - half[0])
        return Price(start + whole + rest, f"from {few} epochs, measured")
    return Price(start + whole * epochs / few, f"at most, from {few} epochs in {whole:.1f} s")


_warm: set[str] = set()


def _execute(run: Run, work: str, progress: Report) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return execute(Task(work, run, Path(folder)), progress)


def starting(engine: Engine | None = None) -> float:
    """Seconds that a run takes to start: none if it is done here or in a copy of this process."""
    copies = isinstance(engine, Pool) and engine.start == "fork"
    return 0.0 if copies or isinstance(engine, Inline) else start_up()


@functools.cache
def start_up() -> float:
    """Seconds that a process takes to start and to load the libraries of training."""
    began = time.perf_counter()
    code = "import gflowout.app.run, lightning.pytorch"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return time.perf_counter() - began


def report(
    kinds: Mapping[Kind, tuple[int, int]],
    prices: Mapping[Kind, Price],
    price: Callable[[Kind], Price],
    workers: int | None,
) -> list[str]:
    """As :func:`left_to_do`, with a last line on the sum; ``None`` workers are not known."""
    lines, total, certain = left_to_do(kinds, prices, price)
    return [*lines, sum_up(total, workers, certain)]


def left_to_do(
    kinds: Mapping[Kind, tuple[int, int]],
    prices: Mapping[Kind, Price],
    price: Callable[[Kind], Price],
) -> tuple[list[str], float, bool]:
    """A line for each kind, all seconds that are known together, and whether all are known.

    Kinds come with their numbers of runs, all and done; ``price`` finds a price that is not known.
    """
    lines, total, certain = [], 0.0, True
    for (method, data), (count, done) in kinds.items():
        kind, left, cost = (method, data), count - done, ""
        run = prices.get(kind) or (price(kind) if left else Price(None, "nothing left to do"))
        if run.seconds is not None:
            total += left * run.seconds
            cost = f" at {duration(run.seconds)}"
        elif left:
            certain = False
        lines.append(f"{method} on {data}: {left} of {count} runs to do{cost} ({run.source})")
    return lines, total, certain


def sum_up(total: float, workers: int | None, certain: bool = True) -> str:
    """One line on all seconds together; not ``certain`` if some prices are unknown."""
    if not certain and not total:
        return "estimated cost: not known"
    share = "" if workers is None else f", about {duration(total / workers)} with {workers} at once"
    rest = "" if certain else "; and what is not known"
    return f"estimated cost: {duration(total)} of computing{share}{rest}"


def tally(
    runs: Sequence[Run], finished: set[str], sort: Sort = by_method
) -> dict[Kind, tuple[int, int]]:
    """Numbers of runs, all and done, by kind."""
    done = Counter(sort(run) for run in runs if run.id in finished)
    return {kind: (count, done[kind]) for kind, count in Counter(map(sort, runs)).items()}


def first(runs: Sequence[Run]) -> Callable[[Kind], Run]:
    """Finds the first run of a kind."""
    return {by_method(run): run for run in reversed(runs)}.__getitem__
