"""The study of estimators: its exact gradient, what it finds, and its command."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from gflowout.cli import commands
from gflowout.studies import enumerable
from gflowout.studies import estimators as study

STEPS = 3000
UNBIASED = [
    "REINFORCE, leave-one-out",
    "REINFORCE, running mean",
    "REINFORCE, leave-one-out, exact KL",
    "TB, exact log Z",
    "TB, learned log Z",
    "ARM, two passes",
    "ARM, a pass per site",
]
BIASED = {
    "TB, batch log Z": 1 / study.BUDGET,  # a shorter gradient of the same direction
    "ARM, two passes, first logits": 0.05,
    "relaxed, temperature 0.5": 0.1,
}
PROBLEMS = {problem.name: problem for problem in enumerable.problems()}
runner = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})


@cache
def exact(name: str) -> Tensor:
    one = enumerable.Posterior.random().repeat(1)
    return one.gradient(enumerable.negative_elbo(PROBLEMS[name], one))[0]


@cache
def found(problem: str, estimator: str) -> dict[str, float]:
    posterior = enumerable.Posterior.random()
    compared = enumerable.estimators(PROBLEMS[problem], posterior)
    rows = study.gradients(compared[estimator], PROBLEMS[problem], posterior, STEPS, seed=1)
    return study.quality(rows, exact(problem))


def by_hand(problem: enumerable.Problem, posterior: enumerable.Posterior) -> Tensor:
    """The negative ELBO, one mask after the other, with the distributions of PyTorch."""
    total = torch.zeros(())
    prior = torch.distributions.Bernoulli(logits=problem.prior)
    for bits in itertools.product((0.0, 1.0), repeat=2 * enumerable.UNITS):
        mask = torch.tensor(bits)
        one, other = mask[: enumerable.UNITS], mask[enumerable.UNITS :]
        second = posterior.second[0] + (2 * one - 1) @ posterior.link[0]
        log_q = torch.distributions.Bernoulli(logits=posterior.first[0]).log_prob(one).sum()
        log_q = log_q + torch.distributions.Bernoulli(logits=second).log_prob(other).sum()
        log_joint = problem.log_likelihood(mask) + prior.log_prob(mask).sum()
        total = total + log_q.exp() * (log_q - log_joint)
    return total


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_exact_gradient_is_that_of_the_enumerated_elbo(name: str) -> None:
    one = enumerable.Posterior.random().repeat(1)
    value = by_hand(PROBLEMS[name], one)
    torch.testing.assert_close(enumerable.negative_elbo(PROBLEMS[name], one)[0], value)
    torch.testing.assert_close(one.gradient(value)[0], exact(name), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_elbo_is_below_the_evidence_by_the_divergence(name: str) -> None:
    elbo = -enumerable.negative_elbo(PROBLEMS[name], enumerable.Posterior.random()).item()
    assert elbo < enumerable.log_evidence(PROBLEMS[name]).item() - 0.1


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("estimator", UNBIASED)
def test_unbiased_estimators_show_no_bias(name: str, estimator: str) -> None:
    result = found(name, estimator)
    assert result["max_z"] <= 4.5  # of 24 parameters
    assert result["bias_low"] <= 0.01


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("estimator", BIASED)
def test_biased_estimators_show_it(name: str, estimator: str) -> None:
    result = found(name, estimator)
    assert result["max_z"] >= 4.5
    assert result["bias_low"] >= 0.5 * BIASED[estimator]


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_relaxed_bias_goes_with_the_temperature(name: str) -> None:
    cold, warm = (found(name, f"relaxed, temperature {value}") for value in (0.1, 0.5))
    assert cold["bias_high"] < warm["bias_low"]
    assert cold["variance"] > warm["variance"]


@pytest.mark.parametrize("name", PROBLEMS)
def test_batch_log_z_shortens_the_gradient_by_one_mask(name: str) -> None:
    expected = 1 - 1 / study.BUDGET
    assert found(name, "TB, batch log Z")["length"] == pytest.approx(expected, abs=0.05)


def test_quality_of_known_rows() -> None:
    truth = torch.tensor([3.0, 4.0])
    rows = truth * 1.1 + torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    result = study.quality(rows, truth)
    assert result["bias"] == pytest.approx(0.1, abs=0.01)
    assert result["bias_low"] < 0.1 < result["bias_high"]
    assert result["bias_high"] - result["bias_low"] == pytest.approx(4 / 20_000**0.5 / 5, rel=0.2)
    assert result["length"] == pytest.approx(1.1, abs=0.01)
    assert result["variance"] == pytest.approx(1, abs=0.03)
    assert study.quality(rows - 0.1 * truth, truth)["bias_low"] == 0


def test_the_command_writes_record_table_and_plot(tmp_path: Path) -> None:
    out = tmp_path / "found"
    arguments = ["study", "estimators", "--draws", "200", "--quick", "--out", str(out)]
    result = runner.invoke(commands.app, arguments)
    assert result.exit_code == 0, result.output
    assert "Gradient of the ELBO, MLP" in result.output
    record = json.loads((out / "estimators.json").read_text())
    assert list(record["problems"]) == list(PROBLEMS)
    names = list(enumerable.estimators(PROBLEMS["MLP"], enumerable.Posterior.random()))
    for rows in record["problems"].values():
        assert [row["estimator"] for row in rows] == names
        first = next(row for row in rows if row["estimator"] == study.BASELINE)
        assert first["variance_ratio"] == first["cost"] == 1
    table = (out / "estimators.md").read_text()
    assert all(table.count(f"| {name} |") == len(PROBLEMS) for name in names)
    assert (out / "estimators.svg").read_text().startswith("<?xml")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    result = runner.invoke(commands.app, ["study", "estimators", "--out", str(missing)])
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.output.replace("│", " ").split())
