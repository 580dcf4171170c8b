"""Which presets records were made with: records do not say so, but their options do.

Knows no study in particular.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gflowout.runs.values import canonical
from gflowout.studies.framework import selection
from gflowout.studies.framework.study import PRESETS, Study

_NOWHERE = Path("no such folder")


def of(study: Study, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The presets that plan the runs of records; none if no preset does.

    What trials have chosen is no matter. A run that several presets plan alike counts for the first
    of them, if no other run tells them apart.

    Args:
        study: One of the paper's.
        records: Of its runs.

    Examples:
        >>> from gflowout.studies.framework.study import get
        >>> cost = get("cost")
        >>> of(cost, [run.to_dict() for run in cost.runs("smoke", {})])
        ['smoke']
    """
    plans = {
        preset: {_key(run.to_dict()) for run in selection.plan(study, preset, _NOWHERE).runs}
        for preset in PRESETS
    }
    keys = {_key(record) for record in records}
    fitting = {tuple(name for name in PRESETS if key in plans[name]) for key in keys} - {()}
    sure = {names[0] for names in fitting if len(names) == 1}
    for names in fitting:
        if not sure.intersection(names):
            sure.add(names[0])
    return [name for name in PRESETS if name in sure]


def _key(run: Mapping[str, Any]) -> str:
    options = {name: value for name, value in run["options"].items() if name != "tuned"}
    return canonical([run["method"], run["data"], run["seed"], options])
