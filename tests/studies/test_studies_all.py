"""``gflowout study run all --preset smoke``: every study, every method, on real data.

Other tests look into the studies one by one, with fewer methods; this one does what a user does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from studies_images_files import SETS

from gflowout.data.store import entry
from gflowout.runs import read
from gflowout.studies.framework import study as studies

HANGS = 600
"""Seconds after which a command is given up. On two free cores it takes far less."""


@pytest.fixture
def data_dir(real_data: Callable[[str], Path], tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in (*SETS, "vqa-rad", "eicu-demo"):
        place = folder / entry(name).folders[0]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(real_data(name))
    return folder


def gflowout(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gflowout.cli", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=HANGS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.long
def test_all_studies_run_and_report_at_preset_smoke(data_dir: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "results", tmp_path / "report.html"
    gflowout("study", "run", "all", "--preset", "smoke", "--out", out, "--data-dir", data_dir)
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
