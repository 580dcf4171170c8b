"""``gflowout study run ood --against``: other data that a user names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_files import write_mnist
from typer.testing import CliRunner

from gflowout.cli import commands, study_runs
from gflowout.studies.framework import plan as planning
from gflowout.studies.framework import study as studies


def test_other_data_of_the_user_are_added_to_the_runs(tmp_path: Path) -> None:
    write_mnist(tmp_path / "letters")
    others = study_runs.others_of(["ood"], f"{tmp_path}/letters,svhn")
    assert others == [str((tmp_path / "letters").resolve()), "svhn"]
    plain = studies.get("ood")
    wider = planning.widened(plain, others)
    for run, before in zip(wider.runs("cpu", {}), plain.runs("cpu", {}), strict=True):
        assert run.options["against"] == (*before.options["against"], *others)
        assert {**run.options, "against": 0} == {**before.options, "against": 0}
        assert (run.method, run.data, run.seed) == (before.method, before.data, before.seed)
    assert wider.tuning("cpu") == plain.tuning("cpu")
    again = planning.widened(plain, ["notmnist"]).runs("cpu", {})
    assert again[0] == plain.runs("cpu", {})[0]  # MNIST is tested against it already
    own = planning.widened(plain, others[:1]).runs("cpu", {})
    assert planning.presets_of(plain, [run.to_dict() for run in own]) == ["cpu"]


@pytest.mark.parametrize(
    ("study", "against", "message"),
    [
        ("robustness", "svhn", "--against is for the study ood"),
        ("ood", "nowhere/letters", "--against: there is no file or folder"),
        ("ood", "notmnst", "--against must be one of .*did you mean 'notmnist'"),
    ],
)
def test_other_data_that_are_not_there(
    study: str, against: str, message: str, tmp_path: Path
) -> None:
    command = ["study", "run", study, "--preset", "smoke", "--out", str(tmp_path / "o")]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        commands.app, [*command, "--against", against]
    )
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))
