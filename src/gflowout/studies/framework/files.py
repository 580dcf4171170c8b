"""Study files: a list of methods, data, seeds and options over a base configuration.

::

    name: digits
    base: config.yaml             # or the sections themselves
    methods: [mc, gflowout]       # or {mc: best-mc.yaml, gflowout: {fit.lr: 3e-3}}
    data: [mnist, fashion-mnist]  # or {small: {source: mnist, limit: 2000}}; default: the base's
    seeds: 3                      # 0, 1, 2; or a list
    options: {fit.lr: [1e-3, 1e-2]}
    test: true                    # whether test scores are wanted
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gflowout.app import config as configs
from gflowout.app import yamls
from gflowout.app.yamls import SHORT, ConfigError
from gflowout.core import checks
from gflowout.core.atomic_io import write_text
from gflowout.runs import Run, records
from gflowout.runs.work import current_name

WORK = "gflowout.app.run:work"
PLAN = "runs.jsonl"
"""File among the records that lists the runs that were planned."""
_KEYS = ("name", "base", "methods", "data", "seeds", "options", "test", "work")
_LISTED = ("seed", "method.name", "method", "data", "data.source")
"""What a study file lists, so that no override may change it."""


@dataclass(frozen=True)
class StudyFile:
    """What a study file says: its runs, and the function that does one."""

    name: str
    runs: list[Run]
    work: str


def read_study(path: str | Path, overrides: Sequence[str] = ()) -> StudyFile:
    """Read a study file; every run's configuration is checked.

    Overrides, as ``"key.sub=value"``, apply to all runs.

    Raises:
        ConfigError: If anything in it cannot be used; lines start with the path.
    """
    path = Path(path)
    try:
        last = yamls.parse_overrides(overrides)
        for key in last:
            if key in _LISTED:
                raise ConfigError(
                    [f"{key} is a list in the study file: change it there, got {last[key]!r}"]
                )
        return _study(_load(path), path, last)
    except ConfigError as error:
        lines = [
            line if line.startswith(str(path)) else f"{path}: {line}" for line in error.problems
        ]
        raise ConfigError(lines) from error


def _study(content: Mapping[str, Any], path: Path, last: Mapping[str, Any]) -> StudyFile:
    for key in content:
        if key not in _KEYS:
            raise ConfigError(
                [f"{key}: there is no such key; keys: {', '.join(_KEYS)}"
                 f"{checks.suggest(key, _KEYS)}"]
            )  # fmt: skip
    folder = path.parent
    base = _sections("base must be the path of a configuration or", content.get("base"), folder)
    base = _changed({}, base)
    name = str(content.get("name", path.stem))
    work, test = current_name(content.get("work", WORK)), content.get("test", True)
    if not isinstance(test, bool):
        raise ConfigError([f"test must be true or false, got {test!r}"])
    methods = _named("methods", content.get("methods", [_word(base, "method", "gflowout")]))
    data = _named("data", content.get("data", [_word(base, "data", "")]))
    grid = _grid(content.get("options") or {})
    problems: dict[str, None] = {}
    runs = []
    for seed, source, method, *values in itertools.product(
        _seeds(content.get("seeds", 1)), data, methods, *grid.values()
    ):
        other = _word(base, "method", "gflowout") != method
        raw = {**base, "method": {"name": method}} if other else base
        own_data = _sections(f"{source} must have a configuration file or", data[source], folder)
        for changes in (
            _sections(f"{method} must have a configuration file or", methods[method], folder),
            {"data.source": source} if source else {},
            {f"data.{key.removeprefix('data.')}": value for key, value in own_data.items()},
            dict(zip(grid, values, strict=True)),
            {**last, "method.name": method, "seed": seed},
        ):
            raw = _changed(raw, changes)
        try:
            # Other work has options of its own, which are not ours to check.
            options = configs.flat(configs.build(raw)) if work == WORK else yamls.flatten(raw)
        except ConfigError as error:
            problems |= dict.fromkeys(f"{method}: {line}" for line in error.problems)
            continue
        where = Path(source or str(options.get("data.source", "data"))).stem
        runs.append(Run(name, method, where, seed, {**options, "test": test}))
    if problems:
        raise ConfigError(list(problems))
    return StudyFile(name, runs, work)


def _load(path: Path) -> dict[str, Any]:
    content = yamls.read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: must hold keys with values, got {content!r}"])
    return content


def _sections(rule: str, given: Any, folder: Path) -> dict[str, Any]:
    """Sections of a configuration, or dotted keys, from a file of the folder or as they are."""
    if isinstance(given, str):
        return _load(folder / given)
    if not isinstance(given, Mapping | None):
        raise ConfigError([f"{rule} options by key, got {given!r}"])
    return dict(given or {})


def _changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`yamls.changed`, but a backbone of a single word remains one, in records, too."""
    others = dict(changes)
    word = others.get("backbone")
    if word is None or isinstance(word, Mapping) or isinstance(raw.get("backbone"), Mapping):
        return yamls.changed(raw, others, merge=True)
    del others["backbone"]
    return yamls.changed(raw, others, merge=True) | {"backbone": word}


def _word(base: Mapping[str, Any], section: str, default: str) -> str:
    """The name of the method, or the source of the data; a section may be this word alone."""
    value = base.get(section, default)
    return str(value.get(SHORT[section], default) if isinstance(value, Mapping) else value)


def _named(key: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list) and given and all(isinstance(name, str) for name in given):
        return dict.fromkeys(given)
    if isinstance(given, Mapping) and given:
        return dict(given)
    raise ConfigError([f"{key} must be a list of names, or names with options, got {given!r}"])


def _grid(options: Any) -> dict[str, list[Any]]:
    if not isinstance(options, Mapping):
        raise ConfigError([f"options must be lists of values by key, got {options!r}"])
    for key, values in options.items():
        if not isinstance(values, list) or not values:
            raise ConfigError([f"options.{key} must be a list of values, got {values!r}"])
    return dict(options)


def _seeds(given: Any) -> list[int]:
    if type(given) is int and given >= 1:
        return list(range(given))
    if isinstance(given, list) and given and all(type(s) is int and s >= 0 for s in given):
        return given
    raise ConfigError([f"seeds must be how many, or a list of integers >= 0, got {given!r}"])


# Planned runs, and what has happened to them


def remember(folder: Path, runs: Iterable[Run]) -> None:
    """Write down which runs are planned; those of other studies stay."""
    runs = list(runs)
    studies = {run.study for run in runs}
    kept = [run for run in planned(folder) if run.study not in studies]
    lines = [json.dumps(run.to_dict()) for run in [*kept, *runs]]
    write_text(folder / PLAN, "\n".join(lines) + "\n")


def planned(folder: Path) -> list[Run]:
    """The runs that were planned in a folder; none if nobody wrote them down."""
    path = folder / PLAN
    if not path.exists():
        return []
    return [Run.from_dict(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


@dataclass(frozen=True)
class Standing:
    """What is done, failed and missing in a folder of records."""

    # By study, data and method the numbers of runs that are done, failed and missing.
    counts: dict[tuple[str, str, str], Counter[str]] = field(default_factory=dict)
    # By id of a run that has failed and not been done since, the last error.
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # ids


def standing(folder: Path) -> Standing:
    """What is done, failed and missing in a folder."""
    runs: dict[str, Run] = {run.id: run for run in planned(folder)}
    done: set[str] = set()
    errors: dict[str, tuple[int, str]] = {}
    for record in records.read(folder):
        runs.setdefault(record["id"], Run.from_dict(record))
        if record["status"] == records.DONE:
            done.add(record["id"])
        else:
            error = (record["attempt"], str(record["error"]["message"]))
            errors[record["id"]] = max(errors.get(record["id"], error), error)
    state = Standing()
    for name, run in runs.items():
        count = state.counts.setdefault((run.study, run.data, run.method), Counter())
        if name in done:
            count["done"] += 1
        elif name in errors:
            count["failed"] += 1
            state.failed[name] = errors[name][1]
        else:
            count["missing"] += 1
            state.missing.append(name)
    return state
