"""From a folder of records to the content of a report: a part for each study, and its origin."""

from __future__ import annotations

import importlib.util
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gflowout.core import checks
from gflowout.core.text import counted
from gflowout.report import summary
from gflowout.report.headline import Headline, headline
from gflowout.runs import Run, environment, records
from gflowout.runs.work import current_name
from gflowout.studies.framework.content import Block, Claim, Section
from gflowout.studies.framework.plan import presets_of
from gflowout.studies.framework.statistics import Record
from gflowout.studies.framework.study import PRESETS, STUDIES, TUNING, Study, get


class NothingDoneError(ValueError):
    """A folder has no record of a run that is done."""


@dataclass(frozen=True)
class Part:
    """A study in a report."""

    name: str
    study: Study | None  # None for one of the user's own
    section: Section
    runs: int = 0  # that are done
    seeds: Sequence[int] = ()  # of those runs
    presets: Sequence[str] = ()  # of those runs, as far as their options tell

    @property
    def title(self) -> str:
        """Its heading."""
        return self.name if self.study is None else self.study.title

    @property
    def extent(self) -> str:
        """How many runs and seeds; empty if there are none."""
        if not self.runs:
            return ""
        return f"{counted(self.runs, 'run')}, {counted(len(self.seeds), 'seed')}"


@dataclass(frozen=True)
class Facts:
    """Where the numbers come from."""

    runs: int = 0  # that are done
    trials: int = 0  # how many of these were for tuning
    failed: int = 0  # runs that have failed and are not done
    seconds: float = 0.0  # of computing, over all runs
    data: Mapping[str, str] = field(default_factory=dict)  # starts of checksums by name, or ""
    seeds: Sequence[int] = ()  # of all runs but trials
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by package
    commits: Sequence[str] = ()  # "id" or "id, with changes"
    machines: Sequence[str] = ()  # classes of machines
    threads: Sequence[int] = ()  # per run
    started: str = ""  # date of the first run
    ended: str = ""  # date of the last run
    commands: Sequence[str] = ()  # that reproduce the report

    @property
    def data_names(self) -> list[str]:
        """Names of data with their parts: "mnist (train, test)" for "mnist, train" and so on."""
        parts: dict[str, list[str]] = {}
        for name in self.data:
            own, _, part = name.partition(", ")
            parts.setdefault(own, []).extend([part] if part else [])
        return [f"{own} ({', '.join(names)})" if names else own for own, names in parts.items()]

    @property
    def packages(self) -> str:
        """Names of packages with their versions."""
        return ", ".join(
            f"{name} {' and '.join(versions)}" for name, versions in self.versions.items()
        )


@dataclass(frozen=True)
class Report:
    """All that a report says."""

    parts: Sequence[Part]  # the paper's studies in their order, then the user's own
    facts: Facts = field(default_factory=Facts)
    groups: Sequence[summary.Group] = ()  # numbers of the user's own studies, for plain tables
    intro: Sequence[str] = ()  # sentences at the top, in place of a summary of all parts
    opened: int = 0  # how many parts a page shows unfolded
    headline: Headline | None = None  # of the paper's studies and our own, where they compare

    @property
    def blocks(self) -> list[Block]:
        """Tables, plots and texts of all parts."""
        return [block for part in self.parts for block in part.section.blocks]

    @property
    def claims(self) -> list[tuple[Part, Claim]]:
        """Claims of the paper and of the user's own studies, with the part they belong to."""
        return [
            (part, claim)
            for part in self.parts
            if part.study is None or part.study.paper
            for claim in part.section.claims
        ]

    @property
    def warning(self) -> str:
        """What is said before all else; empty if there is nothing."""
        tiny = [part.name for part in self.parts if "smoke" in part.presets]
        if not tiny:
            return ""
        whose = f" of {', '.join(tiny)}" if len(tiny) < len(self.parts) else ""
        return (
            f"The numbers{whose} mean nothing: they come from preset smoke, a few steps on tiny "
            "data to see that everything works."
        )


def build(folder: str | Path, studies: Sequence[str] = (), metrics: Sequence[str] = ()) -> Report:
    """The report of a folder of records: of all studies or some, with all metrics or some.

    Metrics, as names or patterns, are those in tables of the user's own studies. Raises as
    :func:`read` does, and a ValueError if a metric is not there.
    """
    folder = Path(folder)
    done = read(folder, studies)
    by_study: dict[tuple[str, bool], list[Record]] = {}
    for record in done:
        by_study.setdefault((record["study"], _is_ours(record)), []).append(record)
    papers = [name for name in STUDIES if (name, True) in by_study]
    parts = []
    for name in papers:
        study, own = get(name), by_study[name, True]
        parts.append(_part(name, study, study.section(own), own))
    # Trials are steps on the way, and of interest where there is nothing else.
    others = sorted(name for name, ours in by_study if not ours and not (papers and name == TUNING))
    if metrics and not others:
        raise ValueError("--metric is for studies from files, and there is none here")
    plain = [record for name in others for record in by_study[name, False]]
    groups = summary.groups(plain, metrics or ("*",)) if plain else []
    for name in others:
        own = by_study[name, False]
        section = summary.section(own, [group for group in groups if group.study == name])
        parts.append(_part(name, None, section, own))
    first = headline(record for name in papers for record in by_study[name, True])
    return Report(parts, _facts(folder, done, parts), groups, (), int(len(parts) == 1), first)


def of_sections(
    sections: Mapping[str, Section],
    intro: Sequence[str],
    seeds: Sequence[int],
    commands: Sequence[str],
) -> Report:
    """A report on what was measured just now, on this machine, and left no records."""
    facts = Facts(
        seeds=seeds,
        versions={name: [number] for name, number in environment.versions().items()},
        machines=[machine(environment.machine())],
        commands=commands,
    )
    parts = [Part(title, None, section) for title, section in sections.items()]
    return Report(parts, facts, intro=intro, opened=2)


def read(folder: Path, studies: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Records of runs that are done, of all studies or some (and of their trials).

    Raises:
        FileNotFoundError: If there is no such folder.
        NothingDoneError: If no run is done.
        ValueError: If a study has no record.
    """
    records.must_be_folder(folder)
    done = records.read(folder, records.DONE)
    if not done:
        raise NothingDoneError(f"{folder}: no run is done here")
    names = list(dict.fromkeys(record["study"] for record in done))
    for name in studies:
        if name not in names:
            raise ValueError(
                f"study must be one of those with a run that is done, {', '.join(sorted(names))}, "
                f"got {name!r}{checks.suggest(name, names)}"
            )
    return [record for record in done if not studies or record["study"] in studies]


def machine(description: Mapping[str, Any]) -> str:
    """A description from :func:`gflowout.runs.environment.machine` in words."""
    gpus = Counter(description.get("gpus") or ())
    memory = description.get("memory_gb")
    parts = [
        f"{description['cores']} cores of {description['cpu']}",
        f"{memory} GiB of memory" if memory else "",
        ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "no GPU",
        str(description["system"]),
    ]
    return ", ".join(filter(None, parts))


def _is_ours(record: Record) -> bool:
    """Whether a record is of one of the paper's studies, not of a user's with the same name."""
    name = record["study"]
    module = f"gflowout.studies.{name.replace('-', '_')}"
    if name not in STUDIES or importlib.util.find_spec(module) is None:
        return False
    try:
        return bool(current_name(record["work"]) == get(name).work)
    except AttributeError:  # a module of that name that is no study
        return False


def _part(name: str, study: Study | None, section: Section, own: Sequence[Record]) -> Part:
    seeds = sorted({int(record["seed"]) for record in own})
    return Part(name, study, section, len(own), seeds, presets_of(study, own) if study else [])


def _facts(folder: Path, done: Sequence[Record], parts: Sequence[Part]) -> Facts:
    runs = [record for record in done if record["study"] != TUNING] or list(done)
    versions: dict[str, dict[str, None]] = {}
    for record in done:
        for package, version in record["versions"].items():
            versions.setdefault(package, {})[version] = None
    commits = Counter(
        f"{record['commit']['id'][:12]}{', with changes' if record['commit']['dirty'] else ''}"
        for record in done
        if record["commit"]
    )
    ids = {record["id"] for record in done}
    studies = {record["study"] for record in done}
    failed = {
        record["id"]
        for record in records.read(folder, records.FAILED)
        if record["study"] in studies and record["id"] not in ids
    }
    return Facts(
        runs=len(done),
        trials=sum(record["study"] == TUNING for record in done),
        failed=len(failed),
        seconds=sum(float(record["seconds"]) for record in done),
        data=_data(runs),
        seeds=sorted({int(record["seed"]) for record in runs}),
        versions={package: list(numbers) for package, numbers in versions.items()},
        commits=[name for name, _ in commits.most_common()],
        machines=list(dict.fromkeys(machine(record["machine"]) for record in done)),
        threads=sorted({int(record["threads"]) for record in done}),
        started=min(record["started"] for record in done)[:10],
        ended=max(record["ended"] for record in done)[:10],
        commands=_commands(folder, done, parts),
    )


def _data(runs: Sequence[Record]) -> dict[str, str]:
    """Names of data, and of their parts, with the first digits of their checksums."""
    sums: dict[str, dict[str, None]] = {str(record["data"]): {} for record in runs}
    for record in runs:
        own = str(record["data"])
        for part, text in record["checksums"].items():
            sums.setdefault(own if part == own else f"{own}, {part}", {})[str(text)] = None
    return {name: _short(*texts) for name, texts in sorted(sums.items())}


def _short(checksum: str = "", *others: str) -> str:
    kind, colon, digits = checksum.rpartition(":")
    more = f" and {len(others)} more" if others else ""
    return f"{kind}{colon}{digits[:16]}{more}"


def _commands(folder: Path, done: Sequence[Record], parts: Sequence[Part]) -> list[str]:
    where, commands = _where(folder)
    for part in parts:
        if part.study is None:
            if part.name != TUNING:
                file = shlex.quote(f"{part.name}.yaml")
                commands.append(f"gflowout study run {file} --out {where}")
            continue
        runs = [Run.from_dict(record) for record in done if record["study"] == part.name]
        data = " --data-dir data" if any(any(part.study.needs(run)) for run in runs) else ""
        start, end = f"gflowout study run {part.name} --preset", f"--out {where}{data}"
        commands += [f"{start} {preset} {end}" for preset in part.presets]
        if not part.presets:
            choice = f"{', '.join(PRESETS[:-1])} or {PRESETS[-1]}"
            commands.append(f"{start} PRESET {end}  # PRESET: {choice}")
    return [*commands, f"gflowout report {where} -o report.html"]


def _where(folder: Path) -> tuple[str, list[str]]:
    """The folder as commands name it, and a comment that says where to give them.

    Pages are shared, so they contain no path of this machine.
    """
    if not folder.is_absolute():
        return shlex.quote(folder.as_posix()), []
    if folder.is_relative_to(Path.cwd()):
        return shlex.quote(folder.relative_to(Path.cwd()).as_posix()), []
    name = shlex.quote(folder.name)
    return name, [f"# in the folder that has {name}:"]
