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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.app import config as configs
from gflowout.app import yamls
from gflowout.app.config import ConfigError
from gflowout.core import checks
from gflowout.core.atomic_io import write_file
from gflowout.core.optional import require
from gflowout.runs import Run, records
from gflowout.runs.work import current_name

WORK = "gflowout.app.run:work"
PLAN = "runs.jsonl"
"""File among the records that lists the runs that were planned."""
_KEYS = ("name", "base", "methods", "data", "seeds", "options", "test", "work")


@dataclass(frozen=True)
class StudyFile:
    """What a study file says: its runs, and the function that does one."""

    name: str
    runs: list[Run]
    work: str


def read_study(path: str | Path, overrides: Sequence[str] = ()) -> StudyFile:
    """Read a study file; every run's configuration is checked.

    Args:
        path: The file.
        overrides: ``"key.sub=value"``, which override all that the file says.

    Raises:
        ConfigError: If anything in it cannot be used; lines start with the path.
    """
    path = Path(path)
    try:
        return build(load(path), path.parent, default=path.stem, last=_parsed(overrides))
    except ConfigError as error:
        lines = [
            line if line.startswith(str(path)) else f"{path}: {line}" for line in error.problems
        ]
        raise ConfigError(lines) from error


def build(
    content: Mapping[str, Any],
    folder: Path,
    *,
    default: str = "study",
    last: Mapping[str, Any] | None = None,
) -> StudyFile:
    """The study of a mapping with the keys of a study file.

    Files that it names are in the folder; ``last`` are changes, by dotted key, that override all.
    """
    for key in content:
        if key not in _KEYS:
            raise ConfigError(
                [f"{key}: there is no such key; keys: {', '.join(_KEYS)}"
                 f"{checks.suggest(key, _KEYS)}"]
            )  # fmt: skip
    base = _base(content.get("base", {}), folder)
    name = str(content.get("name", default))
    work, test = current_name(content.get("work", WORK)), content.get("test", True)
    if not isinstance(test, bool):
        raise ConfigError([f"test must be true or false, got {test!r}"])
    methods = _named("methods", content.get("methods", [_method_of(base)]))
    data = _named("data", content.get("data", [_source_of(base)]))
    grid = {key: _listed(f"options.{key}", values) for key, values in _options(content).items()}
    problems: dict[str, None] = {}
    runs = []
    for seed in _seeds(content.get("seeds", 1)):
        for label, own_data in data.items():
            for method, own in methods.items():
                for values in itertools.product(*grid.values()):
                    raw = overlaid(_with_method(base, method), _changes(method, own, folder))
                    source = {"data.source": label} if label else {}
                    raw = overlaid(
                        raw, source | _prefixed("data", _changes(label, own_data, folder))
                    )
                    raw = overlaid(raw, dict(zip(grid, values, strict=True)))
                    raw = overlaid(raw, {**(last or {}), "method.name": method, "seed": seed})
                    try:
                        # Other work has options of its own, which are not ours to check.
                        options = configs.flat(configs.build(raw)) if work == WORK else flat(raw)
                    except ConfigError as error:
                        problems |= dict.fromkeys(f"{method}: {line}" for line in error.problems)
                        continue
                    where = Path(label or str(options.get("data.source", "data"))).stem
                    runs.append(Run(name, method, where, seed, {**options, "test": test}))
    if problems:
        raise ConfigError(list(problems))
    return StudyFile(name, runs, work)


def load(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    content = configs.read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: must hold keys with values, got {content!r}"])
    return content


def overlaid(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dictionary with changes, which may be nested or have dotted keys, on top.

    Examples:
        >>> overlaid({"fit": {"lr": 1, "epochs": 2}}, {"fit.lr": 3, "method": {"name": "mc"}})
        {'fit': {'lr': 3, 'epochs': 2}, 'method': {'name': 'mc'}}
    """
    found: dict[str, Any] = {
        key: overlaid({}, part) if isinstance(part, Mapping) else part for key, part in raw.items()
    }
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        if rest or isinstance(value, Mapping):
            below = found.get(first)
            if not isinstance(below, dict):  # "method: mc" is short for its name
                short = {"data": "source"}.get(first, "name")
                below = {} if below is None else {short: below}
            found[first] = overlaid(below, {rest: value} if rest else value)
        elif first in ("data", "method", "backbone") and isinstance(found.get(first), dict):
            found[first] = {**found[first], ("source" if first == "data" else "name"): value}
        else:
            found[first] = value
    return found


def flat(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One value per dotted key.

    Examples:
        >>> flat({"fit": {"lr": 0.1}, "seed": 0})
        {'fit.lr': 0.1, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def remember(folder: Path, runs: Iterable[Run]) -> None:
    """Write down which runs are planned; those of other studies stay."""
    runs = list(runs)
    studies = {run.study for run in runs}
    kept = [run for run in planned(folder) if run.study not in studies]
    lines = [json.dumps(run.to_dict()) for run in [*kept, *runs]]
    write_file(folder / PLAN, lambda stream: stream.write(("\n".join(lines) + "\n").encode()))


def planned(folder: Path) -> list[Run]:
    """The runs that were planned in a folder; none if nobody wrote them down."""
    path = folder / PLAN
    if not path.exists():
        return []
    return [Run.from_dict(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


@dataclass(frozen=True)
class Standing:
    """How a folder of records stands.

    Attributes:
        counts: By study, data and method the numbers of runs that are done, failed and missing.
        failed: By id of a run that has failed and not been done since, the last error.
        missing: Ids of runs that are neither.
    """

    counts: dict[tuple[str, str, str], Counter[str]]
    failed: dict[str, str]
    missing: list[str]


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
    found = Standing({}, {}, [])
    for name, run in runs.items():
        state = "done" if name in done else "failed" if name in errors else "missing"
        if state == "failed":
            found.failed[name] = errors[name][1]
        elif state == "missing":
            found.missing.append(name)
        count = found.counts.setdefault((run.study, run.data, run.method), Counter())
        count[state] += 1
    return found


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    yaml = require("yaml", extra="studies", purpose="a study file")
    found = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError([f"{text!r} must be key=value, such as fit.lr=0.01"])
        if key.strip() in ("seed", "method.name", "method", "data", "data.source"):
            raise ConfigError([f"{key.strip()} is for the study file to list, got {text!r}"])
        try:
            found[key.strip()] = yamls.parse(value)
        except yaml.YAMLError:
            raise ConfigError([f"{key.strip()}: {value!r} is not YAML"]) from None
    return found


def _base(given: Any, folder: Path) -> dict[str, Any]:
    if isinstance(given, str):
        return load(folder / given)
    if not isinstance(given, Mapping):
        raise ConfigError([f"base must be the path of a configuration or sections, got {given!r}"])
    return overlaid({}, given)


def _method_of(base: Mapping[str, Any]) -> str:
    section = base.get("method", "gflowout")
    return str(section.get("name", "gflowout") if isinstance(section, Mapping) else section)


def _source_of(base: Mapping[str, Any]) -> str:
    section = base.get("data", "")
    return str(section.get("source", "") if isinstance(section, Mapping) else section)


def _with_method(base: Mapping[str, Any], method: str) -> dict[str, Any]:
    if _method_of(base) == method:
        return dict(base)
    return {**base, "method": {"name": method}}


def _changes(name: str, given: Any, folder: Path) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, str):
        return load(folder / given)
    if not isinstance(given, Mapping):
        raise ConfigError([f"{name} must have a configuration file or options, got {given!r}"])
    return dict(given)


def _prefixed(section: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key if key.startswith(f"{section}.") else f"{section}.{key}": value
        for key, value in changes.items()
    }


def _named(key: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return dict.fromkeys(given)
    if isinstance(given, Mapping) and given:
        return dict(given)
    raise ConfigError([f"{key} must be a list of names, or names with options, got {given!r}"])


def _options(content: Mapping[str, Any]) -> dict[str, Any]:
    given = content.get("options") or {}
    if not isinstance(given, Mapping):
        raise ConfigError([f"options must be lists of values by key, got {given!r}"])
    return dict(given)


def _listed(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError([f"{key} must be a list of values, got {values!r}"])
    return values


def _seeds(given: Any) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return list(range(given))
    good = isinstance(given, list) and given
    if good and all(type(each) is int and each >= 0 for each in given):
        return list(given)
    raise ConfigError([f"seeds must be how many, or a list of integers >= 0, got {given!r}"])
