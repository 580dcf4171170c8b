"""The study on masks: scores of masks, real runs, and what is said of records made by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.runs import Run, read, run_study
from gflowout.studies import images, masks
from gflowout.studies.framework import plan as plans
from gflowout.studies.framework import study as studies
from gflowout.studies.framework.arms import ARMS, of_preset
from gflowout.studies.framework.content import PAPER, Bars, Heat, Points, Table, Text
from gflowout.studies.images import settings
from gflowout.studies.mask_statistics import POSTERIOR, score

OPTIONS = {"id-gflowout": {"train_size": 90}, "combined": {"train_size": 90}}


def model_of(method, **options):
    torch.manual_seed(0)
    net = MLP((6, 5, 4, 3))
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    given = {**OPTIONS.get(method, {}), **options}
    model = gfo.wrap(
        net, method, net.sites, likelihood=gfo.Categorical(3), example=(x[:2],), **given
    )
    for parameter in model.method.parameters():  # away from the start, where all is flat
        torch.nn.init.normal_(parameter, std=0.3)
    return model, x, y


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gflowout", {}),
        ("contextual", {}),
        ("id-gflowout", {}),
        ("id-gflowout", {"preset": "paper"}),  # in training every point has a mask of its own
    ],
)
def test_scores_are_those_of_the_model_for_the_same_masks(method, options):
    model, x, y = model_of(method, **options)
    found = score(model, x, y, 12, seed=3)
    given = list(found.masks.split([5, 4], -1))
    if options:
        assert model.method.options.group_size == 1
        model.set_options(group_size=8)
    model.eval()
    with torch.no_grad():
        losses = [model(x, y=y, masks=[site[k] for site in given]) for k in range(12)]
        logits = [model(x, masks=[site[k] for site in given]) for k in range(12)]
    log_q = torch.stack([each.log_q for each in losses])
    reward = torch.stack([each.log_reward for each in losses])
    fit = torch.stack([each.log_softmax(-1)[torch.arange(8), y] for each in logits])
    if method == "id-gflowout":  # one mask and one score for all points
        assert all(bool((site == site[:, :1]).all()) for site in given)
        log_q, reward, fit = log_q[:, :1], reward[:, :1], 90 * fit.mean(1, keepdim=True)
    assert torch.allclose(found.log_q, log_q, atol=1e-4)
    assert torch.allclose(found.log_reward, reward, rtol=1e-4, atol=1e-3)
    assert torch.allclose(found.log_likelihood, fit, rtol=1e-4, atol=1e-4)


def test_the_reward_of_the_control_has_the_likelihood_though_its_training_has_not():
    model, x, y = model_of("gflowout", beta=0.0)
    found = score(model, x, y, 5, seed=0)
    model.set_options(beta=1.0)
    again = score(model, x, y, 5, seed=0)
    assert torch.equal(found.masks, again.masks)
    assert torch.allclose(found.log_reward, again.log_reward, atol=1e-5)


def test_combined_masks_are_products():
    model, x, y = model_of("combined")
    found = score(model, x, y, 10, seed=0)
    logits = model.predict(x, masks=list(found.masks.split([5, 4], -1))).outputs
    fit = logits.log_softmax(-1)[:, torch.arange(8), y]
    assert torch.allclose(found.log_likelihood, fit, atol=1e-5)
    assert found.log_q.shape == found.log_p.shape == (10, 8)


def test_masks_are_drawn_without_exploring():
    # At temperature 1 the share of kept units follows the policy; exploring pulls it to the prior.
    model, x, y = model_of("gflowout", temperature=1000.0, epsilon=1.0)
    found = score(model, x, y, 400, seed=0)
    model.set_options(temperature=1.0, epsilon=0.0)
    plain = score(model, x, y, 400, seed=0)
    assert torch.equal(found.masks, plain.masks)
    rate = found.masks.mean(0)
    assert float((rate - 0.5).abs().max()) > 0.15


def test_scoring_leaves_model_and_random_state_alone():
    model, x, y = model_of("gflowout")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options, state = model.method.options, torch.get_rng_state()
    first, second = (score(model, x, y, 7, seed=5) for _ in range(2))
    assert torch.equal(first.masks, second.masks)
    assert first.masks.shape == (7, 8, 9)
    assert model.method.options == options
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(first.masks, score(model, x, y, 7, seed=6).masks)


# Runs


@pytest.mark.parametrize("preset", studies.PRESETS)
def test_configurations_are_good_and_those_of_the_robustness_study(preset, tmp_path):
    from gflowout.studies import robustness

    plan = plans.plan(masks.STUDY, preset, tmp_path / "no")
    shared = {trial.id for trial in robustness.STUDY.tuning(preset)}
    assert plan.trials
    assert {trial.id for trial in plan.trials} <= shared
    theirs = {
        (run.data, run.method, run.seed): run
        for run in plans.plan(robustness.STUDY, preset, tmp_path / "no").runs
    }

    def configured(run):
        dotted = {key: value for key, value in run.options.items() if "." in key}
        return settings(ARMS[run.method], dotted, run.options["tuned"], run.seed)

    for run in plan.runs:
        assert configured(run) == configured(theirs[run.data, run.method, run.seed])
    arms = {arm.label for arm in of_preset(preset)} & set(masks.ARMS)
    assert {run.method for run in plan.runs} == arms
    assert len({sum(run.method == arm for run in plan.runs) for arm in arms}) == 1


@pytest.fixture(scope="module")
def done(smoke, real_data, tmp_path_factory):
    """Records of all arms on MNIST, from preset ``smoke``, and of one on CIFAR-10; their runs."""
    sizes = {"cifar10": images.PRESETS["masks"]["smoke"]}
    pictures = images.runs("masks", "smoke", {}, ["cifar10"], sizes)
    pictures = [run for run in pictures if run.method == "gflowout"]
    records = [record for record in read(smoke("masks"), "done") if record["study"] == "masks"]
    runs = [*map(Run.from_dict, records), *pictures]
    return [*records, *_run(pictures, tmp_path_factory.mktemp("masks"), real_data)], runs


def _run(runs, folder, real_data):
    found = []
    for name in dict.fromkeys(run.data for run in runs):
        own = [run for run in runs if run.data == name]
        with studies.data_directory(real_data(name).parent):
            summary = run_study(
                own, masks.STUDY.work, folder, engine="inline", retries=0, progress=False
            )
        assert summary.failed == {}
    found = read(folder, "done")
    assert len(found) == len(runs)
    return found


def test_real_runs(done):
    by_arm = {each["method"]: each["metrics"] for each in done[0] if each["data"] == "mnist"}
    assert set(by_arm) == {arm.label for arm in of_preset("smoke")} & set(masks.ARMS)
    for arm, metrics in by_arm.items():
        assert ("reward/pearson" in metrics) == (arm != "mc")
        assert ("keep/posterior" in metrics) == (arm in POSTERIOR)
        assert 0 < metrics["keep/prediction"] < 1
        sites = [value for name, value in metrics.items() if name.startswith("site/")]
        assert len(sites) == 2
        # Sites of 300 and 100 units.
        mean = (300 * sites[0] + 100 * sites[1]) / 400
        assert mean == pytest.approx(metrics["keep/prediction"], abs=1e-5)
    assert by_arm["id-gflowout"]["distance/between"] == 0
    assert by_arm["id-gflowout"]["distance/same"] == 0
    # Means of fair coins: their distance follows from the binomial distribution.
    n = done[1][0].options["samples"]
    coins = [
        math.comb(n, a) * math.comb(n, b) / 4**n * abs(a - b) / n
        for a in range(n + 1)
        for b in range(n + 1)
    ]
    assert by_arm["mc"]["distance/same"] == pytest.approx(sum(coins), rel=0.03)
    for each in done[0]:
        assert len(json.dumps(each)) < 200_000
        assert set(each["checksums"]) == {"train", "valid", "test"}


def test_the_same_run_gives_the_same_figures(done, real_data, tmp_path):
    runs = [run for run in done[1] if run.method == "gflowout"]
    before = {each["id"]: each for each in done[0]}
    for each in _run(runs, tmp_path, real_data):
        first, second = before[each["id"]]["metrics"], each["metrics"]
        assert first == second
        assert before[each["id"]]["checksums"] == each["checksums"]


def test_the_section_of_real_runs(done):
    found = masks.STUDY.section(done[0])
    kinds = [type(block) for block in found.blocks]
    assert kinds.count(Table) == 6
    assert kinds.count(Points) == kinds.count(Heat) == 4
    assert kinds.count(Bars) == 2
    assert {claim.verdict for claim in found.claims} == {"not testable here"}  # one seed
    for block in found.blocks:
        if isinstance(block, Heat):
            assert len(block.values) == len(block.rows) == 10
            assert {len(row) for row in block.values} == {len(block.columns)}
            assert all(0 <= value <= 1 for row in block.values for value in row)
        if isinstance(block, Points):
            assert len(block.series) == 6
            assert all(abs(sum(each.x)) < 0.1 for each in block.series)  # means are taken off


# Sections of records made by hand


def record(arm, seed, data="mnist", **metrics):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {
        "study": "masks", "data": data, "method": arm, "seed": seed, "started": "",
        "options": {"fit.epochs": 3, "samples": 20, "backbone.width": 8, "data.limit": None},
        "metrics": named,
    }  # fmt: skip


def made(r=0.8, p=0.001, between=0.2, data="mnist", seeds=3):
    return [
        record(
            arm, seed, data,
            reward__pearson=value + seed / 100, reward__p=p, evidence__pearson=0.01 * seed,
            distance__same=0.1 + seed / 1000, distance__between=between + seed / 500,
            information__prediction=0.001, keep__prediction=0.5,
        )
        for seed in range(seeds)
        for arm, value in (("gflowout", r), ("control", 0.7))
    ]  # fmt: skip


def verdicts(records):
    return [claim.verdict for claim in masks.STUDY.section(records).claims]


def test_claims_by_their_rules():
    assert verdicts(made()) == ["reproduced", "reproduced"]
    assert verdicts(made(r=0.3))[0] == "not reproduced"
    assert verdicts(made(p=0.2))[0] == "not reproduced"
    assert verdicts(made(between=0.1))[1] == "not reproduced"
    assert verdicts(made(between=0.05))[1] == "not reproduced"
    # Both data sets are needed.
    assert verdicts([*made(), *made(r=0.1, data="cifar10")])[0] == "not reproduced"
    assert verdicts([*made(), *made(data="cifar10")]) == ["reproduced", "reproduced"]
    assert verdicts(made(seeds=1)) == ["not testable here", "not testable here"]
    assert verdicts([]) == ["not testable here", "not testable here"]


def test_networks_below_the_papers_accuracy_are_left_out():
    weak = made(r=0.1, between=0.05, data="cifar10")
    for each in weak:
        each["metrics"]["best_epoch"] = 1
        each["epochs"] = [{"epoch": n, "valid/accuracy": v} for n, v in enumerate((0.4, 0.5, 0.9))]
    both = masks.STUDY.section([*made(), *weak]).claims
    assert [claim.verdict for claim in both] == ["reproduced", "reproduced"]
    assert all("CIFAR-10 decides nothing: clean accuracy is 50 %" in claim.why for claim in both)
    assert verdicts(weak) == ["not testable here", "not testable here"]


def test_the_control_stands_beside_the_claim():
    found = masks.STUDY.section(made())
    assert "The control, whose reward has no likelihood, has 0.71 on MNIST" in found.claims[0].why
    assert "r = 0.81 (paper: at least 0.4) and 0.71 in the control" in found.findings[0]
    assert "with r = 0.01" in found.findings[0]
    assert "so masks do depend on the input" in found.findings[1]
    assert found.data == ("mnist",)


def test_rows_and_comparisons():
    found = masks.STUDY.section(made())
    table = next(block for block in found.blocks if isinstance(block, Table))
    assert [(row.title, row.source) for row in table.rows] == [
        ("GFlowOut", "ours"), (ARMS["control"].title, "ours"), ("GFlowOut", PAPER)
    ]  # fmt: skip
    ours = table.rows[0].cells
    assert ours[0].mean == pytest.approx(0.81)
    assert ours[0].runs == 3
    assert ours[3].text == "0.001"
    assert table.rows[-1].cells[0].text == "≥ 0.4"
    text = [block for block in found.blocks if isinstance(block, Text)][-1]
    assert text.paragraphs[0].startswith("GFlowOut is better than")
    assert text.paragraphs[1].startswith("No difference seen")


def test_a_half_finished_study():
    found = masks.STUDY.section([record("mc", 0, distance__same=0.1), record("gflowout", 1)])
    assert "1 seed" in " ".join(
        line for block in found.blocks if isinstance(block, Text) for line in block.paragraphs
    )
    nan = made()
    nan[0]["metrics"]["reward/pearson"] = math.nan
    assert verdicts(nan)[0] == "reproduced"  # of the seeds that have a figure
