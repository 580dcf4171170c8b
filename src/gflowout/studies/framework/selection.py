"""A part of a study: some methods, data and seeds of it; and the plan of what is to be done.

Knows no study in particular, and nothing of how runs are done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gflowout.core import checks
from gflowout.runs import Run, records
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.study import Chosen, Options, Study

Pair = tuple[str, str]
"""Data and arm."""

WHOLE = "all"
"""``Run.method`` of a study whose runs each have all methods."""


@dataclass(frozen=True)
class Part:
    """Which runs of a study are wanted; ``None`` for all.

    Attributes:
        methods: Labels of arms, ``Run.method``.
        data: Names of data, ``Run.data``.
        seeds: Seeds.
    """

    methods: Collection[str] | None = None
    data: Collection[str] | None = None
    seeds: Collection[int] | None = None

    def has(self, run: Run) -> bool:
        """Whether a run is wanted."""
        return self.has_pair((run.data, run.method)) and _in(run.seed, self.seeds)

    def has_pair(self, pair: Pair) -> bool:
        """Whether data and arm are wanted."""
        return _in(pair[0], self.data) and _in(pair[1], self.methods)


@dataclass(frozen=True)
class Plan:
    """Trials and runs of a study at a preset.

    Attributes:
        trials: They come first.
        runs: With the options that the trials have chosen, or, before those are done, with what
            the first trial of each arm tries: as many, and about as long.
        tuned: Whether the runs are those that will be done.
    """

    trials: list[Run]
    runs: list[Run]
    tuned: bool


def restricted(study: Study, part: Part) -> Study:
    """The study with some of its runs only, and the trials that these need.

    A run is the same as in the whole study: same options, same record. So a part can be done first
    and the rest later.

    Args:
        study: The whole study.
        part: What is wanted of it.
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


def plan(study: Study, preset: str, folder: Path) -> Plan:
    """What a study will do in a folder.

    Args:
        study: The study, or a part of it.
        preset: ``"smoke"``, ``"cpu"`` or ``"paper"``.
        folder: Where records are and will be.
    """
    checks.choice("preset", preset, studies.PRESETS)
    trials = study.tuning(preset)
    done = records.finished(folder) if folder.is_dir() else set()
    choice: Chosen = _first(trials)
    tuned = all(trial.id in done for trial in trials)
    if tuned:
        try:
            choice = studies.chosen(trials, folder, study.score)
        except ValueError:  # nothing to choose from, which the study says when it is run
            tuned = False
    return Plan(trials, study.runs(preset, choice), tuned)


def check(part: Part, runs: Sequence[Run], prefix: str = "") -> None:
    """Refuse names and seeds that no run has.

    Args:
        part: What is wanted.
        runs: All that there is.
        prefix: What comes before a name in messages: dashes if it is an option of a command.

    Raises:
        ValueError: With what there is.
    """
    for option, wanted, known in (
        ("methods", part.methods, {run.method: None for run in runs}),
        ("data", part.data, {run.data: None for run in runs}),
        ("seeds", part.seeds, {run.seed: None for run in sorted(runs, key=lambda r: r.seed)}),
    ):
        for each in wanted or ():
            if each not in known and list(known) == [WHOLE]:
                raise ValueError(f"{prefix}{option}: this study has no choice of them, got {each}")
            if each not in known:
                raise ValueError(
                    f"{prefix}{option} must be among {', '.join(map(str, known))}, got {each}"
                    f"{checks.suggest(each, map(str, known)) if isinstance(each, str) else ''}"
                )
    if runs and not any(part.has(run) for run in runs):
        names = [f"{prefix}{name}" for name in ("methods", "data", "seeds")]
        raise ValueError(f"no run has these {names[0]}, {names[1]} and {names[2]} together")


def _first(trials: Sequence[Run]) -> dict[Pair, Options]:
    """By data and arm what the first trial tries."""
    found: dict[Pair, Options] = {}
    for trial in trials:
        tuned = trial.to_dict()["options"].get("tuned", {})
        found.setdefault((trial.data, trial.method), dict(tuned))
    return found


def _in(value: str | int, wanted: Collection[str] | Collection[int] | None) -> bool:
    return wanted is None or value in wanted
