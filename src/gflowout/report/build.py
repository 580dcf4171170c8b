"""From a folder of records to what a report says: a part for each study, and the facts.

Knows the studies, but no format.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.report import generic, tables
from gflowout.runs import Run, records
from gflowout.runs.work import current_name
from gflowout.studies.framework import summary
from gflowout.studies.framework.content import Section, Table
from gflowout.studies.framework.plan import presets_of
from gflowout.studies.framework.study import PRESETS, STUDIES, TUNING, Study, get

Record = Mapping[str, Any]


class NothingDoneError(ValueError):
    """A folder has no record of a run that is done."""


@dataclass(frozen=True)
class Part:
    """A study in a report.

    Attributes:
        name: Of the study.
        study: One of the paper's; ``None`` for one of the user's own.
        section: What it says.
        runs: How many are done.
        seeds: Of those runs.
        presets: That those runs are of, as far as their options tell.
    """

    name: str
    study: Study | None
    section: Section
    runs: int = 0
    seeds: Sequence[int] = ()
    presets: Sequence[str] = ()

    @property
    def title(self) -> str:
        """Its heading."""
        return self.name if self.study is None else self.study.title


@dataclass(frozen=True)
class Facts:
    """What figures come from.

    Attributes:
        runs: How many are done.
        trials: How many of them were for tuning.
        failed: How many runs have failed, and are not done.
        seconds: Of computing, over all runs.
        data: Starts of checksums by name; empty where there is none.
        seeds: Of all runs but trials.
        versions: Of packages, by name; several where records differ.
        commits: Of the code, as ``id`` or ``id, with changes``.
        machines: Classes of machines.
        threads: Per run.
        started: Date of the first run.
        ended: Date of the last.
        commands: That make it all again.
    """

    runs: int = 0
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    data: Mapping[str, str] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commits: Sequence[str] = ()
    machines: Sequence[str] = ()
    threads: Sequence[int] = ()
    started: str = ""
    ended: str = ""
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes:
        parts: The paper's studies in their order, then the user's own.
        facts: What the figures come from.
        groups: Numbers of the user's own studies, for plain tables.
    """

    parts: Sequence[Part]
    facts: Facts = field(default_factory=Facts)
    groups: Sequence[summary.Group] = ()

    @property
    def warning(self) -> str:
        """What is to be said before all else; empty if there is nothing."""
        tiny = [part.name for part in self.parts if "smoke" in part.presets]
        if not tiny:
            return ""
        whose = f" of {', '.join(tiny)}" if len(tiny) < len(self.parts) else ""
        return (
            f"The figures{whose} mean nothing: they come from preset smoke, a few steps on tiny "
            "data to see that everything works."
        )


def build(
    folder: str | Path,
    studies: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Report:
    """Read the records of a folder.

    Args:
        folder: Where they are.
        studies: Names of those to report; default: all.
        metrics: Names or patterns of metrics in tables of the user's own studies; default: all.

    Raises:
        FileNotFoundError: If there is no such folder.
        NothingDoneError: If no run is done.
        ValueError: If a study or a metric is not there.
    """
    folder = Path(folder)
    kept = read(folder, studies)
    by_study: dict[tuple[str, bool], list[Record]] = {}
    for record in kept:
        by_study.setdefault((record["study"], _is_ours(record)), []).append(record)
    papers = [name for name in STUDIES if (name, True) in by_study]
    parts = []
    for name in papers:
        study, own = get(name), by_study[name, True]
        parts.append(_part(name, study, study.section(own), own))
    # Trials are steps on the way, and of interest where there is nothing else.
    others = sorted(name for name, ours in by_study if not ours and not (papers and name == TUNING))
    plain = [record for name in others for record in by_study[name, False]]
    found: list[summary.Group] = []
    if plain:
        found = summary.groups(plain, metrics or ("*",))
    elif metrics:
        raise ValueError("--metric is for studies from files, and there is none here")
    for name in others:
        own = by_study[name, False]
        mine = [group for group in found if group.study == name]
        parts.append(_part(name, None, generic.section(own, mine), own))
    return Report(parts, _facts(folder, kept, parts), found)


def read(folder: Path, studies: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Records of runs that are done, of all studies or some (and of their trials).

    Raises:
        FileNotFoundError: If there is no such folder.
        NothingDoneError: If no run is done.
        ValueError: If a study has no record.
    """
    records.must_be_folder(folder)
    found = records.read(folder, records.DONE)
    if not found:
        raise NothingDoneError(f"{folder}: no run is done here")
    known = list(dict.fromkeys(record["study"] for record in found))
    for name in studies:
        if name not in known:
            raise ValueError(
                f"study must be one of those with a run that is done, {', '.join(sorted(known))}, "
                f"got {name!r}{checks.suggest(name, known)}"
            )
    if not studies:
        return found
    return [record for record in found if record["study"] in studies]


def _is_ours(record: Record) -> bool:
    """Whether a record is of one of the paper's studies, not of a user's with the same name."""
    name = record["study"]
    if name not in STUDIES:
        return False
    module = f"gflowout.studies.{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is None:
        return False
    try:
        return bool(current_name(record["work"]) == get(name).work)
    except AttributeError:  # a module of that name that is no study
        return False


def _part(name: str, study: Study | None, section: Section, own: Sequence[Record]) -> Part:
    for block in section.blocks:
        if isinstance(block, Table):
            tables.check(block)
    seeds = sorted({int(record["seed"]) for record in own})
    known = [] if study is None else presets_of(study, own)
    return Part(name, study, section, len(own), seeds, known)


def _facts(folder: Path, kept: Sequence[Record], parts: Sequence[Part]) -> Facts:
    runs = [record for record in kept if record["study"] != TUNING] or list(kept)
    versions: dict[str, dict[str, None]] = {}
    for record in kept:
        for package, version in record["versions"].items():
            versions.setdefault(package, {})[version] = None
    commits = Counter(
        f"{record['commit']['id'][:12]}{', with changes' if record['commit']['dirty'] else ''}"
        for record in kept
        if record["commit"]
    )
    done = {record["id"] for record in kept}
    studies = {record["study"] for record in kept}
    failed = {
        record["id"]
        for record in records.read(folder, records.FAILED)
        if record["study"] in studies and record["id"] not in done
    }
    return Facts(
        runs=len(kept),
        trials=sum(record["study"] == TUNING for record in kept),
        failed=len(failed),
        seconds=sum(float(record["seconds"]) for record in kept),
        data=_data(runs),
        seeds=sorted({int(record["seed"]) for record in runs}),
        versions={package: list(found) for package, found in versions.items()},
        commits=[name for name, _ in commits.most_common()],
        machines=list(dict.fromkeys(_machine(record["machine"]) for record in kept)),
        threads=sorted({int(record["threads"]) for record in kept}),
        started=min(record["started"] for record in kept)[:10],
        ended=max(record["ended"] for record in kept)[:10],
        commands=_commands(folder, kept, parts),
    )


def _data(runs: Sequence[Record]) -> dict[str, str]:
    """Names of data, and of their parts, with checksums."""
    found: dict[str, dict[str, None]] = {str(record["data"]): {} for record in runs}
    for record in runs:
        for part, text in record["checksums"].items():
            own = str(record["data"])
            name = own if part == own else f"{own}, {part}"
            found.setdefault(name, {})[str(text)] = None
    return {name: _short(list(sums)) for name, sums in sorted(found.items())}


def _short(sums: Sequence[str]) -> str:
    """The first letters of a checksum: records have them all."""
    if not sums:
        return ""
    kind, _, digits = sums[0].rpartition(":")
    text = f"{kind}:{digits[:16]}" if kind else digits[:16]
    return text if len(sums) == 1 else f"{text} and {len(sums) - 1} more"


def _machine(found: Mapping[str, Any]) -> str:
    """The class of a machine in words."""
    gpus = Counter(found.get("gpus") or ())
    parts = [
        f"{found['cores']} cores of {found['cpu']}",
        f"{found['memory_gb']} GiB of memory" if found.get("memory_gb") else "",
        ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "no GPU",
        str(found["system"]),
    ]
    return ", ".join(part for part in parts if part)


def _commands(folder: Path, kept: Sequence[Record], parts: Sequence[Part]) -> list[str]:
    where, made = _where(folder)
    for part in parts:
        if part.study is None and part.name != TUNING:
            file = shlex.quote(f"{part.name}.yaml")
            made.append(f"gflowout study run {file} --out {where}")
        elif part.study is not None:
            own = [Run.from_dict(record) for record in kept if record["study"] == part.name]
            data = (
                " --data-dir data"
                if any(name for run in own for name in part.study.needs(run))
                else ""
            )
            choice = f"  # PRESET: {', '.join(PRESETS[:-1])} or {PRESETS[-1]}"
            made += [
                f"gflowout study run {part.name} --preset {preset} --out {where}{data}"
                f"{choice if preset == 'PRESET' else ''}"
                for preset in part.presets or ["PRESET"]
            ]
    return [*made, f"gflowout report {where} -o report.html"]


def _where(folder: Path) -> tuple[str, list[str]]:
    """The folder as commands name it, and a word on where they are given.

    Pages are shared, so they tell no path of this machine.
    """
    if not folder.is_absolute():
        return shlex.quote(folder.as_posix()), []
    if folder.is_relative_to(Path.cwd()):
        return shlex.quote(folder.relative_to(Path.cwd()).as_posix()), []
    name = shlex.quote(folder.name)
    return name, [f"# in the folder that has {name}:"]
