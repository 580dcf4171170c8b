"""What was promised of the default on the rivals' tables, judged on records of at least five seeds.

Every claim has its rule and its numbers beside the verdict. Nothing is judged where a run is
missing that the rule needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from gflowout.studies.features_compare import inclusion_error, ranks
from gflowout.studies.features_tables import ORIGINS, RULES
from gflowout.studies.framework.claims import entry, template
from gflowout.studies.framework.content import Claim
from gflowout.studies.framework.statistics import Record, by_seed

OURS, HIDDEN, LINEAR, BOOSTING = "id-gflowout", "network", "ridge", "lightgbm"
WIDTH = 256
"""Columns of the published problems that are judged."""
REGRESSIONS = ("wide-500", "correlated")
SELECTING = ("l1", "gates")
"""Rivals that the default is compared with on :data:`REGRESSIONS`."""
KNOWN = (*(f"{name}-{WIDTH}" for name in RULES), *REGRESSIONS)
REAL = tuple(name for name, origin in ORIGINS.items() if not origin.known)
SMALL = tuple(name for name in REAL if name not in ("khan", "caravan"))
"""Real tables with fewer than 1,000 rows and columns."""
LEAST_SEEDS = 5
LEAST_TRUTHS = 6


def claims(records: Sequence[Record]) -> list[Claim]:
    """All of them; none without a record of a rival's table."""
    own = [record for record in records if record["data"] in ORIGINS]
    if not own:
        return []
    return [
        *(_published(own, name) for name in RULES),
        *(claim(own, name) for name in REGRESSIONS for claim in (_near, _selected)),
        _calibrated(own),
        _ranked(own),
        _as_calibrated(own),
        _level(own),
    ]


def _means(records: Sequence[Record], arm: str, data: str, *metrics: str) -> list[float]:
    """Means over seeds; empty if an arm has one of the metrics for fewer than five seeds."""
    values = [list(by_seed(records, data, arm, metric).values()) for metric in metrics]
    if min(map(len, values)) < LEAST_SEEDS:
        return []
    return [fmean(own) for own in values]


def _open(name: str, missing: Sequence[str], **texts: Any) -> Claim:
    return template(f"features.{name}", None, **texts, missing=", ".join(missing))


def _published(records: Sequence[Record], name: str) -> Claim:
    """Share of true columns among the top, and test AUROC against the best published one."""
    data = f"{name}-{WIDTH}"
    least = entry("features.published")["least"][name]
    widths = {place: own for place, own in ORIGINS.items() if place.rpartition("-")[0] == name}
    published = {place: own.published for place, own in widths.items() if own.published}
    (place, numbers), *_ = published.items()
    best = max(auroc for _, auroc in numbers.values())
    strict = least < 0.9
    texts: dict[str, Any] = {
        "problem": ORIGINS[data].title,
        "least": f"{'above' if strict else 'at least'} {least}",
        "best": best,
        "columns": place.rpartition("-")[2],
    }
    means = _means(records, OURS, data, "select/top", "test/auroc")
    if not means:
        return _open("published", [data], **texts)
    top, auroc = means
    enough = top > least if strict else top >= least
    return template("features.published", enough and auroc > best, **texts, top=top, auroc=auroc)


def _near(records: Sequence[Record], data: str) -> Claim:
    """NLL within 5 % of the best of L1 and gates."""
    texts: dict[str, Any] = {"problem": ORIGINS[data].title}
    means = {arm: _means(records, arm, data, "test/nll", "test/rmse") for arm in (OURS, *SELECTING)}
    missing = [arm for arm, numbers in means.items() if not numbers]
    if missing:
        return _open("near", missing, **texts)
    best = min(SELECTING, key=lambda arm: means[arm][0])
    (nll, rmse), (other, error) = means[OURS], means[best]
    texts |= {"best": best, "nll": nll, "other": other, "rmse": rmse, "error": error}
    return template("features.near", nll <= other + 0.05 * abs(other), **texts)


def _selected(records: Sequence[Record], data: str) -> Claim:
    """Power of at least 0.8 at a mean false discovery proportion of at most 0.1."""
    texts: dict[str, Any] = {"problem": ORIGINS[data].title}
    means = _means(records, OURS, data, "select/power", "select/fdp")
    if not means:
        return _open("selected", [OURS], **texts)
    power, false = means
    good = power >= 0.8 and false <= 0.1
    return template("features.selected", good, **texts, power=power, false=false)


def _calibrated(records: Sequence[Record]) -> Claim:
    """Calibration error of inclusion of at most 0.05, for every known truth and for all of them."""
    ready = [name for name in KNOWN if _means(records, OURS, name, "select/ece")]
    if len(ready) < LEAST_TRUTHS:
        return _open("calibrated", [name for name in KNOWN if name not in ready])
    errors = {name: inclusion_error(records, OURS, [name])[0] for name in ready}
    pooled = inclusion_error(records, OURS, ready)[0]
    worst = max(errors, key=errors.__getitem__)
    good = max(pooled, errors[worst]) <= 0.05
    texts: dict[str, Any] = {"count": len(ready), "pooled": pooled, "worst": errors[worst]}
    return template("features.calibrated", good, **texts, problem=ORIGINS[worst].title)


def _ranked(records: Sequence[Record]) -> Claim:
    """Median rank in NLL of at most 2 on real tables."""
    missing = [name for name in REAL if not _means(records, OURS, name, "test/nll")]
    if missing:
        return _open("ranked", missing)
    places = ranks(records, REAL)
    own = {name: table[OURS] for name, table in places.items()}
    arms = max(map(len, places.values()))
    listed = ", ".join(f"{ORIGINS[name].title} {place}" for name, place in own.items())
    middle = median(own.values())
    return template("features.ranked", middle <= 2, median=middle, arms=arms, listed=listed)


def _differences(
    records: Sequence[Record], tables: Sequence[str], metric: str, arm: str, other: str
) -> Mapping[str, float]:
    """Mean of one arm less that of another, by table; those without five seeds are left out."""
    pairs = {
        name: (_means(records, arm, name, metric), _means(records, other, name, metric))
        for name in tables
    }
    return {name: ours[0] - theirs[0] for name, (ours, theirs) in pairs.items() if ours and theirs}


def _listed(differences: Mapping[str, float]) -> str:
    return ", ".join(f"{ORIGINS[name].title} {gap:+.3f}" for name, gap in differences.items())


def _as_calibrated(records: Sequence[Record]) -> Claim:
    """ECE no worse than that of tuned LightGBM, in the median over real tables with classes."""
    tables = [name for name in REAL if ORIGINS[name].classes]
    gaps = _differences(records, tables, "test/ece", OURS, BOOSTING)
    if len(gaps) < len(tables):
        return _open("as-calibrated", [name for name in tables if name not in gaps])
    middle = median(gaps.values())
    return template("features.as-calibrated", middle <= 0, median=middle, listed=_listed(gaps))


def _level(records: Sequence[Record]) -> Claim:
    """Without masked inputs: NLL at most that of a linear model, in the median."""
    gaps = _differences(records, SMALL, "test/nll", HIDDEN, LINEAR)
    if len(gaps) < len(SMALL):
        return _open("level", [name for name in SMALL if name not in gaps])
    behind = sum(gap > 0 for gap in gaps.values())
    texts: dict[str, Any] = {"behind": behind, "tables": len(gaps), "median": median(gaps.values())}
    return template("features.level", texts["median"] <= 0, **texts, listed=_listed(gaps))
