"""The section of the study joint: hand-made records, whole and partly finished."""

from typing import Any

import pytest

from gflowout.studies import joint
from gflowout.studies.framework.content import Claim, Curves, Pictures, Table

LEVELS = {
    "none": -23.0, "ensemble": -22.0, "mc": -21.0, "mc-bound": -20.0, "gflowout-bound": -19.5,
    "control-bound": -20.5, "mixture": -20.1,
}  # fmt: skip
NAMES = ("digits", "drugs", "drugs-hospitals", "home-drugs", "tags", "arm")
WOBBLE = (0.02, -0.02, 0.01, 0.0, -0.01)


def records(names: tuple[str, ...] = NAMES, seeds: int = 5, **levels: float) -> list[Any]:
    rows = []
    for data in names:
        for place, (arm, level) in enumerate({**LEVELS, **levels}.items()):
            for seed in range(seeds):
                # Differences of two arms wobble, too: else they would be certain.
                score = level + (place + 1) * WOBBLE[(seed + place) % 5]
                metrics = {
                    "test/joint": score, "test/bias": 0.1, "test/energy": 1.0, "steps": 100,
                    "cost/train": 10.0, "cost/curve": [1.0, 2.0], "curve/valid": [-30.0, -25.0],
                    "pairs/bins": [[0.05, 0.06, 100], [0.5, 0.4, 10]],
                }  # fmt: skip
                if data == "digits" and seed == 0:
                    metrics["pictures"] = "aGVsbG8="
                rows.append({
                    "study": "joint", "data": data, "method": arm, "seed": seed, "started": "",
                    "metrics": metrics, "options": {"tuned": {"lr": 1e-3, "prior": "fixed"}},
                })  # fmt: skip
    return rows


def verdicts(**levels: float) -> dict[str, Claim]:
    claims = joint.claims(records(**levels), NAMES)
    return {claim.claim: claim for claim in claims}


def test_section_of_hand_made_records() -> None:
    found = joint.section(records())
    first = next(block for block in found.blocks if isinstance(block, Table))
    rows = {row.title: row.cells for row in first.rows}
    assert len(first.columns) == 6
    assert rows["MC dropout"][0].mean == pytest.approx(-21, abs=0.01)
    assert rows["MC dropout"][0].runs == 5
    assert (list(rows).index("GFlowOut, marginal bound"), 0) in first.best
    assert "GFlowOut, marginal bound is better than" in found.findings[0]
    curves = [block for block in found.blocks if isinstance(block, Curves)]
    assert len(curves) == 12
    assert {series.title for series in curves[0].series} >= {"MC dropout", "Mixture head"}
    assert "Deep ensemble" not in {series.title for series in curves[0].series}
    assert list(curves[1].series[1].y) == [0.06, 0.4]
    (pictures,) = (block for block in found.blocks if isinstance(block, Pictures))
    assert len(pictures.pictures) == len(LEVELS)
    assert list(found.data) == list(NAMES)
    last = found.blocks[-1]
    assert isinstance(last, Table)
    assert {cell.text for row in last.rows for cell in row.cells} == {"lr 0.001, prior fixed"}


def test_what_is_not_there_is_left_out() -> None:
    assert joint.section([]).findings
    found = joint.section(records(("tags",), seeds=1))
    assert list(found.data) == ["tags"]
    assert {claim.verdict for claim in found.claims} == {"open"}


def test_claims_follow_the_stated_rules() -> None:
    good = verdicts()
    assert len(good) == 8
    assert {claim.verdict for claim in good.values()} == {"holds"}
    name = next(name for name in good if "digits" in name and "above MC dropout" in name)
    near = verdicts(mc=-20.5)
    assert near[name].verdict == "open"
    assert "+1.0" in near[name].why
    assert verdicts(mc=-20.0)[name].verdict == "does not hold"
    same = list(verdicts(**{"mc-bound": -19.5}).values())[-2:]
    assert [claim.verdict for claim in same] == ["holds", "does not hold"]
    below = list(verdicts(**{"mc-bound": -19.0}).values())[-2:]
    assert [claim.verdict for claim in below] == ["does not hold", "does not hold"]
    assert "Below it on 6" in below[0].why
    control = [
        claim for claim in verdicts(**{"control-bound": -19.0}).values() if "β" in claim.claim
    ]
    assert {claim.verdict for claim in control} == {"does not hold"}


def test_nothing_is_judged_of_few_seeds_or_problems() -> None:
    few = joint.claims(records(seeds=4), NAMES)
    assert {claim.verdict for claim in few} == {"open"}
    some = joint.claims(records(("digits", "tags")), ("digits", "tags"))
    assert [claim.verdict for claim in some][-2:] == ["open", "holds"]
