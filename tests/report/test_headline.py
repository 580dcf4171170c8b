"""The sentence and the picture at the top of a report, against comparisons made by hand."""

import re
from itertools import product

import pytest
import report_files

from gflowout.report import build, headline, html, markdown
from gflowout.studies.framework.statistics import holm, paired
from gflowout.studies.framework.study import STUDIES

SEEDS = range(5)
PARTS, _, HIDDEN = headline.PANELS


def value(arm, place, seed):
    """MC dropout has 2 + noise; the ensemble is 20 % better, GFlowOut equal or worse."""
    noise = 0.01 * ((seed * 7 + place) % 5)
    base = 2.0 + 0.1 * seed
    return base * {"mc": 1.0, "ensemble": 0.8}.get(arm, 1.3 if place == 0 else 1.0) + (
        0 if arm == "mc" else noise - 0.02
    )


@pytest.fixture
def records():
    return [
        {
            "study": problem.study, "data": problem.data, "method": arm, "seed": seed,
            "metrics": {problem.metric: value(arm, place, seed)},
        }
        for (place, problem), arm, seed in product(
            enumerate(HIDDEN.problems[::2]), ("mc", "gflowout", "ensemble"), SEEDS
        )
    ]  # fmt: skip


def test_numbers_are_paired_differences_in_percent_with_holm_over_the_panel(records):
    (picture,) = headline.headline(records).pictures
    problems = HIDDEN.problems[::2]
    assert [*picture.rows] == [problem.label for problem in problems]
    for arm in ("gflowout", "ensemble"):
        tests = {}
        for place, problem in enumerate(problems):
            ours, base = ([value(name, place, seed) for seed in SEEDS] for name in (arm, "mc"))
            tests[problem.label] = paired(ours, base, "low")
        unit = sum(2.0 + 0.1 * seed for seed in SEEDS) / len(SEEDS) / 100
        for label, test in holm(tests).items():
            mean, low, high, verdict = picture.rows[label][arm]
            wanted = (test.difference / unit, test.low / unit, test.high / unit)
            assert (mean, low, high) == pytest.approx(wanted)
            assert verdict == test.firm
    assert picture.arms == ["gflowout", "ensemble"]
    low, high = picture.ends
    assert low <= -20 <= 0 <= 30 <= high + 3


def test_the_answer_counts_what_is_significant(records):
    assert headline.headline(records).answer == (
        "On hidden units, no: GFlowOut has a lower NLL than tuned MC dropout on 0 of 5 problems "
        "and a higher one on 1 (deep ensemble: on 5)."
    )
    alone = [record for record in records if record["method"] != "ensemble"]
    assert headline.headline(alone).answer.endswith("and a higher one on 1.")


def test_a_log_likelihood_counts_as_its_negative():
    problem = PARTS.problems[0]
    records = [
        {
            "study": problem.study, "data": problem.data, "method": arm, "seed": seed,
            "metrics": {problem.metric: -value("ensemble" if arm == PARTS.ours else arm, 1, seed)},
        }
        for arm, seed in product(("mc", PARTS.ours), SEEDS)
    ]  # fmt: skip
    first = headline.headline(records)
    assert first.answer == (
        "On labels with many parts, yes: GFlowOut with the marginal bound has a lower NLL than "
        "tuned MC dropout on 1 of 1 problem."
    )
    (difference,) = first.pictures[0].rows[problem.label].values()
    assert -25 < difference.low < difference.mean < difference.high < -15


def test_nothing_is_said_where_nothing_can_be_compared(records):
    for left_out in ("mc", "gflowout"):
        some = [record for record in records if record["method"] != left_out]
        assert headline.headline(some) is None
    assert headline.headline([record for record in records if record["seed"] == 0]) is None
    assert headline.headline([]) is None


def test_problems_are_of_studies_that_there_are():
    for panel in headline.PANELS:
        assert {problem.study for problem in panel.problems} <= set(STUDIES)
        assert len({problem.label for problem in panel.problems}) == len(panel.problems)
        assert {panel.ours, panel.rival} <= headline.SHOWN.keys()


def test_page_and_document_begin_with_the_answer(records):
    part = build.Part("ood", report_files.study("ood"), build.Section())
    report = build.Report([part], headline=headline.headline(records))
    page, text = html.page(report), markdown.document(report)
    start = page[page.index("<h1>") :]
    assert start.startswith(f'<h1>{headline.QUESTION}</h1>\n<p class="lead"><b>On hidden units, no')
    assert start.index("on 0 of 5") < start.index('class="forest"') < start.index("<section id=")
    assert text.startswith(f"# Results\n\n**{headline.QUESTION}** On hidden units, no")
    places = re.findall(r"(?:left|width):([-\d.]+)%", page[page.index('class="forest"') :])
    assert len(places) > 20
    assert all(-0.01 <= float(place) <= 100.01 for place in places)
    assert "<h1>Mine</h1>" in html.page(report, "Mine")
