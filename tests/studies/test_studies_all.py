"""``gflowout study run all --preset smoke``: every study, every method, on real data.

Other tests look into the studies one by one, with fewer methods; this one does what a user does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gflowout.runs import read
from gflowout.studies.framework import study as studies


@pytest.mark.long
def test_all_studies_run_and_report_at_preset_smoke(
    smoke: Callable[[str], Path], gflowout: Callable[..., None], tmp_path: Path
) -> None:
    out, page = smoke("all"), tmp_path / "report.html"
    assert not read(out, "failed")
    done = {record["id"] for record in read(out, "done")}
    for name in studies.STUDIES:
        study = studies.get(name)
        trials = study.tuning("smoke")
        chosen = studies.chosen(trials, out, study.score)
        assert {run.id for run in (*trials, *study.runs("smoke", chosen))} <= done, name
    gflowout("report", out, "-o", page)
    text = page.read_text()
    assert all(studies.get(name).title in text for name in studies.STUDIES)
