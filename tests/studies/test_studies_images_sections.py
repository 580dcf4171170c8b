"""What the studies on images say of records that were made by hand."""

import math
from typing import Any

import pytest
from studies_images_files import record, shifted

from gflowout.app import evaluation
from gflowout.studies import adaptation, block_order, ood, ood_section, robustness
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import sections
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import Claim, Curves, Pictures, Section, Table, Text
from gflowout.studies.framework.statistics import Comparison, by_seed, paired

GAP = {"none": 0.0, "mc": 0.01, "concrete": 0.005, "contextual-paper": -0.02, "gflowout": 0.03}


def robust(data: str, gaps: dict[str, float], seeds: int = 3) -> list[dict[str, Any]]:
    """Accuracies that differ by the gaps and wobble a little with the seed."""
    return [
        record(
            "robustness",
            data,
            arm,
            seed,
            shifted(0.9 + gap + seed / 100, 0.4 + gap + (1 + gap) * seed / 1000),
        )
        for arm, gap in gaps.items()
        for seed in range(seeds)
    ]


def tables(section: Section) -> dict[str, Table]:
    return {block.title: block for block in section.blocks if isinstance(block, Table)}


def verdict(claims: Any, words: str) -> Claim:
    (found,) = [claim for claim in claims if words in claim.claim]
    assert isinstance(found, Claim)
    return found


def test_the_table_of_robustness_has_means_errors_and_the_papers_rows() -> None:
    made = tables(robustness.section(robust("mnist", GAP)))["MNIST"]
    titles = [column.title for column in made.columns]
    ours = {row.title: row.cells for row in made.rows if row.source == "ours"}
    paper = {row.title: row.cells for row in made.rows if row.source == "paper"}
    assert list(ours) == [ARMS[arm].title for arm in ARMS if arm in GAP]
    first = ours["MC dropout"][titles.index("Accuracy")]
    assert first.mean == pytest.approx(0.92)
    assert first.error == pytest.approx(0.01 / math.sqrt(3))
    assert first.runs == 3
    # Severities 1 to 5 take 0.02 each: 0.06 on average.
    spoiled = ours["GFlowOut"][titles.index("Accuracy, corrupted")]
    assert spoiled.mean == pytest.approx(0.94 - 0.06)
    assert ours["GFlowOut"][titles.index("NLL, corrupted")].mean == pytest.approx(1.3)
    turned = titles.index("Accuracy, rotated")
    assert paper["GFlowOut"][0].mean == 0.9675
    assert paper["ID-GFlowOut"][turned].mean == 0.7019
    assert paper["MC dropout"][turned].mean == 0.4396
    assert paper["GFlowOut"][titles.index("NLL")].mean is None
    assert made.note.startswith("Mean ± standard error over 3 runs.")
    assert len(paper) == 5


def test_what_was_tuned_is_listed() -> None:
    records = robust("mnist", GAP)
    for each in records:
        each["options"]["tuned"] = {"fit.lr": 0.003, "method.options.rate": 0.1}
    made = tables(robustness.section(records))["Chosen on validation data"]
    assert [row.title for row in made.rows] == [ARMS[arm].title for arm in ARMS if arm in GAP]
    assert [cell.text for row in made.rows for cell in row.cells] == ["lr 0.003, rate 0.1"] * 5


def test_curves_start_at_the_same_images_unshifted() -> None:
    section = robustness.section(robust("cifar10", GAP))
    curves = {block.title: block for block in section.blocks if isinstance(block, Curves)}
    assert len(curves) == 9
    plot = curves["CIFAR-10, frost: accuracy"]
    line = next(each for each in plot.series if each.title == "GFlowOut")
    assert list(line.x) == [0, 1, 2, 3, 4, 5]
    assert list(line.y) == pytest.approx([0.94, 0.92, 0.90, 0.88, 0.86, 0.84])
    assert line.error is not None
    assert line.error[0] == pytest.approx(0.01 / math.sqrt(3))
    assert plot.percent
    assert not curves["CIFAR-10, snow: NLL"].percent
    alone = robustness.section(robust("cifar10", GAP, seeds=1))
    assert all(
        each.error is None
        for block in alone.blocks
        if isinstance(block, Curves)
        for each in block.series
    )


def test_findings_and_claims_of_robustness_follow_the_paired_comparison() -> None:
    records = [each for data in robustness.DATA for each in robust(data, GAP)]
    section = robustness.section(records)
    text = (
        "Accuracy on rotated MNIST: GFlowOut is better than any other method (3 paired seeds, "
        "95 %, Holm)."
    )
    assert text in section.findings
    claims = section.claims
    assert verdict(claims, "random rotations").verdict == "reproduced"
    assert "Holds in 3 of 3" in verdict(claims, "random rotations").why
    assert verdict(claims, "five of six").verdict == "reproduced"
    assert verdict(claims, "random dropout falls far").verdict == "not reproduced"
    assert "Here: 94.00 and 92.00 %." in verdict(claims, "random dropout falls far").why
    assert verdict(claims, "Two thirds").verdict == "not reproduced"
    assert "43.10 %" in verdict(claims, "Two thirds").why
    worse = {**GAP, "gflowout": -0.05}
    claims = robustness.claims([each for data in robustness.DATA for each in robust(data, worse)])
    assert verdict(claims, "random rotations").verdict == "not reproduced"
    assert verdict(claims, "five of six").verdict == "not reproduced"
    assert "Holds in 0 of 6" in verdict(claims, "five of six").why
    assert "points on average" in verdict(claims, "five of six").why
    assert "of width 8 (the paper's: 64) and 9,000" in verdict(claims, "random rotations").why


def test_networks_far_below_the_papers_accuracy_decide_nothing() -> None:
    for shift in (-0.03, 0.03):  # whether GFlowOut would win or lose
        low = {arm: gap - 0.39 + shift * (arm == "gflowout") for arm, gap in GAP.items()}
        records = [each for data in robustness.DATA for each in robust(data, low)]
        other = [{**each, "study": "block-order"} for each in robust("cifar10", low)]
        claims = (*robustness.section(records).claims, *block_order.section(other).claims)
        assert len(claims) == 5
        assert {claim.verdict for claim in claims} == {"not testable here"}
        assert all("decides nothing: clean accuracy is 5" in claim.why for claim in claims)


@pytest.mark.parametrize(
    ("accuracy", "weak"), [(None, False), (0.816, False), (0.814, True), (0.99, False)]
)
def test_ten_points_below_the_paper_is_too_far(accuracy: float | None, weak: bool) -> None:
    assert bool(judged.out_of_reach(accuracy, 0.915, "CIFAR-10")) == weak


@pytest.mark.parametrize("outcome", [True, False])
def test_a_stand_in_never_refutes_the_paper(outcome: bool) -> None:
    values = {"other": "MC", "data": "eICU demo", "margins": "F1 0.1"}
    demo = judged.stand_in("eicu-demo")
    asked = judged.template("clinical.superior", outcome, replaced=demo, **values)
    assert asked.verdict == "tested on a stand-in"
    assert asked.why.startswith("Holds on" if outcome else "Does not hold on")
    own = judged.template("clinical.superior", outcome, replaced=judged.stand_in("eicu"), **values)
    assert own.verdict == ("reproduced" if outcome else "not reproduced")
    unknown = judged.template("clinical.superior", None, replaced=demo, **values)
    assert unknown.verdict == "not testable here"


def test_what_is_not_there_yet_is_said() -> None:
    section = robustness.section([])
    assert not section.findings
    assert not section.blocks
    assert {claim.verdict for claim in section.claims} == {"not testable here"}
    records = robust("mnist", GAP)[:-1]  # a run is missing
    section = robustness.section(records)
    assert any("2 to 3 seeds (not all runs are done)" in line for line in _texts(section))
    assert any("2 paired seeds" in line for line in _texts(section))
    assert verdict(section.claims, "five of six").verdict == "not testable here"
    single = robustness.section(robust("mnist", GAP, seeds=1))
    assert {claim.verdict for claim in single.claims} == {"not testable here"}
    assert any(line.endswith("20 draws, 1 seed.") for line in _texts(single))
    assert not single.findings
    for module in (block_order, ood, adaptation):
        assert {claim.verdict for claim in module.section([]).claims} == {"not testable here"}


def test_pictures_are_those_of_the_record() -> None:
    one = {"png": "AA==", "title": "7", "probabilities": [0.1, 0.9], "spread": [0, 0],
           "uncertainty": 0.3}  # fmt: skip
    records = robust("mnist", {"gflowout": 0.0})
    records[0]["metrics"] |= {"pictures": [one], "classes": ["6", "7"]}
    section = robustness.section(records)
    (found,) = [block for block in section.blocks if isinstance(block, Pictures)]
    assert found.classes == ["6", "7"]
    assert found.pictures[0].title == "7"
    assert "GFlowOut (seed 0)" in found.caption


def test_block_order_has_no_rows_of_the_paper() -> None:
    records = [{**each, "study": "block-order"} for each in robust("cifar10", GAP)]
    section = block_order.section(records)
    assert {row.source for row in tables(section)["CIFAR-10"].rows} == {"ours"}
    (claim,) = section.claims
    assert claim.verdict == "reproduced"
    assert "Holds in 3 of 3" in claim.why
    assert "2 are needed" in claim.why


def detected(
    data: str, other: str, aurocs: dict[str, float], clean: float = 0.9
) -> list[dict[str, Any]]:
    found = []
    for arm, auroc in aurocs.items():
        for seed in range(5):
            value = auroc + (1 + auroc) * seed / 1000
            metrics = {
                f"{other}/{score}/{what}": value - place / 10
                for place, score in enumerate(ood.SCORES)
                for what in ("auroc", "aupr", "fpr95")
            }
            metrics["clean/accuracy"] = clean
            if arm == "none":
                metrics |= {f"{other}/mutual_information/auroc": math.nan}
            found.append(record("ood", data, arm, seed, metrics, {"test": 1000}))
    return found


AUROCS = {
    "none": 0.6, "mc": 0.7, "concrete": 0.7, "contextual-paper": 0.71, "gflowout": 0.75,
    "id-gflowout-paper": 0.65, "ensemble": 0.8,
}  # fmt: skip


def test_ood_tables_and_claims_without_svhn() -> None:
    records = [
        *detected("cifar10", "cifar100", AUROCS), *detected("cifar100", "cifar10", AUROCS),
        *detected("mnist", "notmnist", AUROCS),
    ]  # fmt: skip
    section = ood.section(records)
    made = tables(section)
    assert list(made) == [
        "MNIST against notMNIST", "CIFAR-10 against SVHN", "CIFAR-10 against CIFAR-100",
        "CIFAR-100 against SVHN", "CIFAR-100 against CIFAR-10",
    ]  # fmt: skip
    published = made["CIFAR-10 against SVHN"]
    assert {row.source for row in published.rows} == {"paper"}
    assert [column.title for column in published.columns] == [
        "AUROC, Dempster-Shafer", "AUPR, Dempster-Shafer",
    ]  # fmt: skip
    best = {row.title: row.cells for row in published.rows}
    assert (best["GFlowOut"][0].mean, best["GFlowOut"][0].error) == (0.955, 0.013)
    assert (best["Deep ensemble"][1].mean, best["Deep ensemble"][1].error) == (0.912, 0.006)
    assert "not among the data" in published.caption
    pair = made["CIFAR-10 against CIFAR-100"]
    cells = {row.title: row.cells for row in pair.rows}
    titles = [column.title for column in pair.columns]
    assert cells["GFlowOut"][titles.index("AUROC, Dempster-Shafer")].mean == pytest.approx(0.7535)
    assert cells["GFlowOut"][titles.index("FPR95, entropy")].mean == pytest.approx(0.5535)
    assert [c.better for c in pair.columns[:3]] == ["high", "high", "low"]
    assert cells["No dropout"][titles.index("AUROC, mutual information")].text == "-"
    claims = section.claims
    assert verdict(claims, "against SVHN").verdict == "not testable here"
    assert "SVHN is not among" in verdict(claims, "against SVHN").why
    for words, start in {
        "stand-in": "Holds on the other CIFAR, in place of SVHN.",
        "keeps up": "Does not hold on the other CIFAR",
        "detects poorly": "Holds on the other CIFAR",
    }.items():
        assert verdict(claims, words).verdict == "tested on a stand-in"
        assert verdict(claims, words).why.startswith(start)
    weak = [*detected("cifar10", "cifar100", AUROCS, 0.8), *detected("cifar100", "cifar10", AUROCS)]
    said = verdict(ood.claims(weak), "detects poorly")
    assert said.verdict == "not testable here"
    assert "CIFAR-10 decides nothing: clean accuracy is 80 %, the paper has 92 %." in said.why


def test_ood_with_svhn_puts_the_paper_beside_it_and_decides_by_it() -> None:
    records = [*detected("cifar10", "svhn", AUROCS), *detected("cifar100", "svhn", AUROCS)]
    section = ood.section(records)
    made = tables(section)
    assert list(made) == ["CIFAR-10 against SVHN", "CIFAR-100 against SVHN"]
    assert {row.source for row in made["CIFAR-10 against SVHN"].rows} == {"ours", "paper"}
    assert verdict(section.claims, "against SVHN").verdict == "reproduced"
    assert verdict(section.claims, "keeps up").verdict == "not reproduced"


def with_all_scores(other: str = "notmnist") -> list[dict[str, Any]]:
    """Features beat draws, kNN most; scores of draws are NaN for the network without."""
    records = detected("mnist", other, AUROCS)
    names = [*ood_section.FEATURES, *ood_section.DRAWS]
    for made in records:
        for score in names:
            value = 0.99 if score == "knn" else 0.9 if score in ood_section.FEATURES else 0.5
            value += 0.1 * (score == "logit_disagreement") + made["seed"] / 1000
            if score in evaluation.COMPARED and made["method"] == "none":
                value = math.nan
            made["metrics"] |= {
                f"{other}/{score}/{what}": value for what in ("auroc", "aupr", "fpr95")
            }
    return records


def test_ood_leads_with_the_score_to_use_and_shows_all_of_them_by_method() -> None:
    section = ood.section(with_all_scores())
    assert section.findings[0] == (
        "To tell notMNIST from MNIST, use kNN (features): AUROC 0.992, FPR95 0.992, averaged over "
        "6 methods with draws. The best score from draws is logit disagreement (draws), 0.602; "
        "Dempster-Shafer, the paper's measure, has 0.502."
    )
    made = tables(section)
    assert list(made)[-1] == "MNIST against notMNIST"
    table = made["AUROC of every score, MNIST against notMNIST"]
    assert [column.title for column in table.columns] == [
        ARMS[arm].title for arm in ARMS if arm in AUROCS
    ]
    rows = {row.title: row.cells for row in table.rows}
    assert len(rows) == len(ood_section.FEATURES) + len(ood_section.DRAWS)
    assert rows["kNN (features)"][0].mean == pytest.approx(0.992)
    assert rows["logit disagreement (draws)"][0].text == "-"  # of the network without draws
    assert "FPR95 of every score, MNIST against notMNIST" in made


def test_ood_of_records_from_before_the_new_scores_is_as_it_was() -> None:
    old = detected("mnist", "notmnist", AUROCS)
    section = ood.section(old)
    assert list(tables(section)) == ["MNIST against notMNIST"]
    assert not any("use" in finding for finding in section.findings)
    # Some runs are old: their methods are not measured, and not averaged.
    new = [made for made in with_all_scores() if made["method"] != "mc"]
    mixed = ood.section([*new, *(made for made in old if made["method"] == "mc")])
    rows = {row.title: row.cells for row in tables(mixed)[
        "AUROC of every score, MNIST against notMNIST"
    ].rows}  # fmt: skip
    assert rows["kNN (features)"][1].text == "-"
    assert "averaged over 5 methods" in mixed.findings[0]


def test_ood_against_a_folder_of_the_user_has_its_name() -> None:
    section = ood.section(with_all_scores("my-letters"))
    assert "AUROC of every score, MNIST against my-letters" in tables(section)
    assert section.findings[0].startswith("To tell my-letters from MNIST, use kNN (features)")


def adapted(gaps: dict[str, float], before: float = 0.8) -> list[dict[str, Any]]:
    return [
        record(
            "adaptation",
            "cifar10",
            arm,
            seed,
            {
                f"points-{points}/{what}": before + points / 100_000 + gap + (1 + gap) * seed / 1000
                for points in (0, 1000, 8000)
                for what in ("accuracy", "nll", "ece")
            },
            {"points": [1000, 8000]},
        )
        for arm, gap in gaps.items()
        for seed in range(3)
    ]


def test_adaptation_has_accuracy_against_points() -> None:
    gaps = {"concrete": 0.0, "contextual-paper": 0.01, "id-gflowout-paper": 0.02, "gflowout": 0.05}
    section = adaptation.section(adapted(gaps))
    made = tables(section)["CIFAR-10"]
    titles = [column.title for column in made.columns]
    assert titles == ["Before", "1,000 points", "8,000 points", "Mean after"]
    cells = {row.title: row.cells for row in made.rows}["Concrete dropout"]
    assert [cell.mean for cell in cells] == pytest.approx([0.801, 0.811, 0.881, 0.846])
    curve = next(block for block in section.blocks if isinstance(block, Curves))
    assert list(curve.series[0].x) == [0, 1000, 8000]
    assert verdict(section.claims, "adapt faster").verdict == "reproduced"
    assert verdict(section.claims, "about equally").verdict == "not reproduced"
    assert "adaptation" not in " ".join(section.findings)
    assert section.findings[0].startswith("Accuracy on CIFAR-10 after fine-tuning")
    level = adaptation.section(adapted({**gaps, "gflowout": 0.005, "id-gflowout-paper": 0.0}))
    assert verdict(level.claims, "adapt faster").verdict == "not reproduced"
    assert verdict(level.claims, "about equally").verdict == "reproduced"
    weak = adaptation.section(adapted(gaps, before=0.5))
    assert {claim.verdict for claim in weak.claims} == {"not testable here"}


def test_differences_at_other_keep_rates_are_compared_at_equal_ones() -> None:
    gaps = {"mc": 0.0, "combined": 0.03, "mc-at-combined": 0.03, "combined-control": 0.0}
    records = robust("mnist", {**gaps, "gflowout": 0.05})
    rates = {"mc": 0.9, "combined": 0.82, "mc-at-combined": 0.82, "combined-control": 0.81}
    for each in records:
        each["metrics"]["keep"] = rates.get(each["method"], 0.7)
    section = robustness.section(records)
    kept = tables(section)["Keep rates"]
    assert {row.title: row.cells[0].mean for row in kept.rows}["GFlowOut + ID"] == pytest.approx(
        0.82
    )
    (equal,) = [
        block for block in section.blocks
        if isinstance(block, Text) and block.paragraphs[0].startswith("At equal keep rates")
    ]  # fmt: skip
    assert (
        "Accuracy on rotated MNIST: GFlowOut + ID is better than GFlowOut + ID (β = 0), not "
        "significantly different from MC dropout at the keep rate of GFlowOut + ID (3 paired "
        "seeds, 95 %, Holm)."
    ) in equal.paragraphs
    ahead = "GFlowOut is better than MC dropout in accuracy on clean MNIST"
    (said,) = [line for line in _texts(section) if line.startswith(ahead)]
    assert said.endswith("They keep 0.70 and 0.90 of their units: see equal keep rates.")


PAIRS = {  # by what the 95 % interval of the difference is, here about ±0.0248 around the mean
    "far ahead": 0.06, "ahead": 0.03, "level": 0.0, "behind": -0.03, "far behind": -0.06,
}  # fmt: skip


def difference(mean: float, spread: float = 0.01, seeds: int = 3) -> dict[str, Comparison]:
    ours = [mean + spread * (seed - (seeds - 1) / 2) for seed in range(seeds)]
    return {"mc": paired(ours, [0.0] * seeds, "high")}


@pytest.mark.parametrize(
    ("mean", "better", "as_good", "level"),
    [
        ("far ahead", True, True, False),
        ("ahead", True, True, None),
        ("level", None, None, None),
        ("behind", False, False, None),
        ("far behind", False, False, False),
    ],
)
def test_wide_intervals_decide_nothing(
    mean: str, better: bool | None, as_good: bool | None, level: bool | None
) -> None:
    found = difference(PAIRS[mean])
    assert judged.outcome("beats", found, ["mc"]) is better
    assert judged.outcome("holds_up", found, ["mc"]) is as_good
    assert judged.outcome("level", found, ["mc"]) is level


def test_a_rule_on_margins_holds_fails_or_cannot_tell() -> None:
    other = [0.51, 0.50, 0.50]
    far = paired([0.60, 0.61, 0.62], [0.50, 0.52, 0.51], "high")
    level, noisy = (paired(ours, other, "high") for ours in ([0.5, 0.51, 0.5], [0.5, 0.7, 0.4]))
    for f1, holds in ((far, True), (level, False), (noisy, None)):
        assert judged.by_margins({"F1": f1}, {"F1": 0.05}, judged.superior)[0] is holds
    close = paired([0.500, 0.501, 0.500], [0.500, 0.500, 0.500], "high")
    assert judged.by_margins({"F1": close}, {"F1": 0.0}, judged.matches)[0] is True
    wide = paired([0.3, 0.5, 0.4], [0.4, 0.3, 0.4], "high")
    assert judged.outcome("beats", {"mc": wide}, ["mc"]) is None


def test_seeds_and_comparisons_are_counted_in_words() -> None:
    one = {"data": "mnist", "method": "mc", "seed": 0}
    assert sections.seeds_done([one], "mnist") == "1 seed"
    (text,) = sections.pair_by_pair(["No difference seen."])
    assert text.title == "GFlowOut against each method, pair by pair: 1 comparison"
    assert sections.pair_by_pair([]) == []


def test_narrow_intervals_and_margins_of_the_paper_decide() -> None:
    narrow = difference(0.0, spread=0.001)
    assert judged.outcome("beats", narrow, ["mc"]) is False  # a gain of a point is excluded
    assert judged.outcome("holds_up", narrow, ["mc"]) is True
    assert judged.outcome("level", narrow, ["mc"]) is True
    assert judged.outcome("beats", narrow, ["mc"], {"mc": 0.002}) is None
    assert judged.outcome("beats", difference(0.0), ["mc"], {"mc": 0.04}) is False
    for few in (difference(0.0, spread=0.001, seeds=2), {}):
        assert judged.outcome("beats", few, ["mc"]) is None
        assert judged.outcome("holds_up", few, ["mc"]) is None
        assert judged.outcome("level", few, ["mc"]) is None


def test_of_several_arms_those_that_are_undecided_count() -> None:
    ahead, wide = difference(0.004, spread=0.001)["mc"], difference(0.0)["mc"]
    worse = difference(-0.004, spread=0.001)["mc"]
    assert (ahead.verdict, worse.verdict) == ("better", "worse")
    # An arm that is beaten by less than the margin does not decide against us.
    assert judged.outcome("beats", {"mc": ahead, "concrete": wide}, ["mc", "concrete"]) is None
    assert judged.outcome("beats", {"mc": ahead, "concrete": ahead}, ["mc", "concrete"]) is True
    assert judged.outcome("beats", {"mc": ahead, "concrete": worse}, ["mc", "concrete"]) is False
    # Behind, but by less than what is taken for a difference.
    assert judged.outcome("holds_up", {"mc": worse}, ["mc"]) is True
    assert judged.outcome("level", {"mc": worse}, ["mc"]) is True
    assert judged.outcome("holds_up", {"mc": worse, "concrete": wide}, ["mc", "concrete"]) is None
    far = difference(-0.06)["mc"]
    assert judged.outcome("holds_up", {"mc": far, "concrete": wide}, ["mc", "concrete"]) is False
    for test in ("beats", "holds_up"):
        assert judged.outcome(test, {"mc": ahead}, ["mc", "concrete"]) is None
        assert judged.outcome(test, {}, (name for name in ("mc",))) is None
        assert judged.outcome(test, {"mc": ahead}, ()) is None


def test_to_lose_is_that_every_other_beats_ours() -> None:
    for mean in PAIRS.values():
        (found,), (mirrored,) = difference(mean).values(), difference(-mean).values()
        ours, theirs = {"mc": found}, {"mc": mirrored}
        for margins in (None, {"mc": 0.05}):
            expected = judged.outcome("beats", theirs, ["mc"], margins)
            assert judged.outcome("loses", ours, ["mc"], margins) is expected


def test_an_average_needs_all_of_its_metrics() -> None:
    records = [
        record("s", "mnist", "mc", 0, {"a": 1.0, "b": 3.0}), record("s", "mnist", "mc", 1, {"a": 9})
    ]  # fmt: skip
    assert by_seed(records, "mnist", "mc", ["a", "b"]) == {0: 2.0}


@pytest.mark.parametrize(
    ("outcomes", "needed", "expected"),
    [
        ({"a": True, "b": True, "c": False}, 2, "reproduced"),
        ({"a": True, "b": False, "c": False}, 2, "not reproduced"),
        ({"a": True, "b": None, "c": False}, 2, "not testable here"),
        ({"a": False, "b": None, "c": False}, 2, "not reproduced"),
        ({"a": None}, 1, "not testable here"),
    ],
)
def test_verdicts_count_what_is_known(
    outcomes: dict[str, bool | None],
    needed: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"claim": "It works.", "needed": needed, "rule": "it does"}
    monkeypatch.setattr(judged, "entry", lambda name: texts)
    assert judged.counted("study.claim", outcomes).verdict == expected


def test_an_overview_names_every_arm_once() -> None:
    wins = paired([3, 4, 5.5], [1, 2, 3], "high")
    even = paired([1, 2, 3], [1.1, 1.9, 3], "high")
    lost = paired([1, 2, 3], [3, 4, 5.5], "high")
    mixed = {"mc": wins, "none": lost, "concrete": even, "control": even}
    assert sections.overview(mixed, "it") == [
        "It: GFlowOut is better than MC dropout, worse than No dropout, not significantly "
        "different from Concrete dropout and GFlowOut (β = 0) (3 paired seeds, 95 %, Holm)."
    ]
    assert sections.overview({"mc": even}, "it") == [
        "It: GFlowOut is not significantly different from MC dropout (3 paired seeds, 95 %, Holm)."
    ]
    unknown = paired([1], [2], "high")
    assert sections.overview({"mc": unknown}, "it") == []
    # Many are not listed, unless one of them could not be compared.
    many = dict.fromkeys(("mc", "none", "concrete", "contextual"), even)
    assert "not significantly different from any other method (" in sections.overview(many, "it")[0]
    assert (
        "MC dropout, not significantly different from the other methods ("
        in (sections.overview({**many, "mc": wins, "control": even}, "it")[0])
    )
    assert (
        "from MC dropout, No dropout, Concrete dropout and Contextual dropout ("
        in (sections.overview({**many, "control": unknown}, "it")[0])
    )


def _texts(section: Section) -> list[str]:
    return [
        line for block in section.blocks if isinstance(block, Text) for line in block.paragraphs
    ]
