"""Claims and their verdicts: texts and rules from ``claims.toml``, judged on paired comparisons.

A verdict on the paper is given only where it can be. What was tested on data, or on a device, in
place of the paper's says so, whatever came out; and networks whose clean accuracy is far below
the paper's decide nothing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from statistics import fmean
from types import MappingProxyType
from typing import Any

from gflowout.studies.framework.content import Claim, Column, Verdict
from gflowout.studies.framework.statistics import Comparison, Metric, Record, compare_all, seeds_of

LEAST_SEEDS = 3
"""With fewer no claim is judged."""
SLACK = 0.01
"""A difference in a share or an AUROC that is taken for none: a point."""
REACH = 0.1
"""How far clean accuracy may be below the paper's."""
Outcome = bool | None
"""Of a test: ``None`` if it cannot be made or the intervals are too wide to tell."""
VERDICTS: Mapping[bool, Mapping[Outcome, Verdict]] = {
    False: {True: "reproduced", False: "not reproduced", None: "not testable here"},
    True: {True: "holds", False: "does not hold", None: "open"},
}
"""Of the paper's claims, and of our own."""
_CLAIMS: dict[str, Any] = tomllib.loads((files(__package__) / "claims.toml").read_text("utf-8"))


def entry(name: str) -> dict[str, Any]:
    """What ``claims.toml`` says of a claim, named by study and claim.

    Examples:
        >>> entry("ood.ensembles")["test"]
        'holds_up'
    """
    study, _, claim = name.partition(".")
    texts: dict[str, Any] = _CLAIMS[study][claim]
    return {**entry(texts["like"]), **texts} if "like" in texts else texts


def columns(study: str) -> dict[str, dict[str, Column]]:
    """Columns of a study's tables, by table and metric."""
    return {
        table: {metric: Column(**column) for metric, column in by_metric.items()}
        for table, by_metric in _CLAIMS[study]["columns"].items()
    }


def paper(study: str) -> dict[str, Any]:
    """The paper's numbers of a study."""
    return dict(_CLAIMS["paper"][study])


def stand_in(data: str) -> str:
    """What data are in place of, in words; empty if they are the paper's.

    Examples:
        >>> stand_in("eicu-demo"), stand_in("mnist")
        ('the eICU demo, in place of the full database', '')
    """
    return str(_CLAIMS["stand-ins"].get(data, ""))


def out_of_reach(accuracy: float | None, published: float, what: str) -> str:
    """Why networks cannot tell anything of the paper's; empty if they are good enough.

    Examples:
        >>> out_of_reach(0.47, 0.915, "CIFAR-10")
        'CIFAR-10 decides nothing: clean accuracy is 47 %, the paper has 92 %.'
        >>> out_of_reach(0.86, 0.915, "CIFAR-10")
        ''
    """
    if accuracy is None or accuracy >= published - REACH:
        return ""
    return (
        f"{what} decides nothing: clean accuracy is {100 * accuracy:.0f} %, the paper has "
        f"{100 * published:.0f} %."
    )


def claim(
    name: str,
    outcome: Outcome,
    why: str,
    replaced: str = "",
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Claim:
    """A claim of ``claims.toml`` with its verdict; ``replaced`` says what was a stand-in, if so."""
    texts = entry(name)
    verdict = VERDICTS[texts.get("own", False)][outcome]
    if replaced and outcome is not None:
        verdict = "tested on a stand-in"
        why = f"{'Holds' if outcome else 'Does not hold'} on {replaced}. {why}"
    return Claim(texts["claim"].format(**values), verdict, why)


def template(
    name: str, outcome: Outcome, key: str = "", replaced: str = "", **values: Any
) -> Claim:
    """A claim whose explanation is a template: ``why``, by default ``open`` without an outcome.

    Examples:
        >>> template("cost.twice", True, time=2.04).why.partition(". ")[2]
        'It takes 2.04 times.'
    """
    texts = entry(name)
    why = texts[key or ("open" if outcome is None and "open" in texts else "why")]
    return claim(name, outcome, why.format(**values), replaced, values)


def counted(
    name: str, outcomes: Mapping[str, Outcome], note: str = "", replaced: str = ""
) -> Claim:
    """A claim that holds if enough of some experiments agree; the note is added to the explanation.

    ``needed`` of the experiments must agree: all by default, -1 for all but one.
    """
    texts = entry(name)
    needed = texts.get("needed", len(outcomes))
    needed = max(1, len(outcomes) + needed) if needed < 0 else needed
    good = [title for title, outcome in outcomes.items() if outcome]
    missing = sum(outcome is None for outcome in outcomes.values())
    decided = len(outcomes) - missing
    where = f": {', '.join(good)}" if good and decided > 1 else ""
    enough = "1 is needed" if needed == 1 else f"{needed} are needed"
    why = f"Rule: {texts['rule']}. Holds in {len(good)} of {decided}{where}; {enough}."
    if missing:
        why += f" {missing} more cannot be decided from what has been run."
    holds = True if len(good) >= needed else None if len(good) + missing >= needed else False
    return claim(name, holds, why + note, replaced)


def judge(
    name: str,
    records: Sequence[Record],
    experiments: Mapping[str, tuple[str, Metric]],
    margins: Mapping[str, Mapping[str, float]] | None = None,
    note: str = "",
    replaced: str = "",
    weak: Mapping[str, str] = MappingProxyType({}),
) -> Claim:
    """A claim that its ``test`` judges by comparing arms in some experiments.

    Experiments are, by title, data and a metric of which high values are good; margins are, by
    title and other arm, the differences that the paper reports. ``replaced`` says what was a
    stand-in, and ``weak``, by data, why they decide nothing.
    """
    texts = entry(name)
    ours, others = texts.get("ours", "gflowout"), texts["others"]
    outcomes, widths = dict[str, Outcome](), list[float]()
    for title, (data, metric) in experiments.items():
        pairs = compare_all(records, data, metric, "high", ours, others)
        if weak.get(data):
            outcomes[title] = None
            continue
        outcomes[title] = outcome(texts["test"], pairs, others, (margins or {}).get(title))
        widths += [pair.high - pair.low for pair in pairs.values() if not math.isnan(pair.low)]
    if widths and texts.get("width"):
        note = f" Intervals are ±{50 * fmean(widths):.1f} points on average.{note}"
    reasons = dict.fromkeys(weak.get(data, "") for data, _ in experiments.values())
    note += "".join(f" {reason}" for reason in reasons if reason)
    return counted(name, outcomes, note, replaced)


def by_margins(
    comparisons: Mapping[str, Comparison],
    margins: Mapping[str, float],
    rule: Callable[[Comparison, float], Outcome],
    *,
    scale: float = 1.0,
) -> tuple[Outcome, str]:
    """Whether a rule, :func:`superior` or :func:`matches`, holds in every metric, and why.

    Comparisons and the differences that the paper reports are by title of the metric; a scale of
    100 shows points of a percentage.
    """
    problem = next(filter(None, map(_problem, comparisons.values())), "")
    if problem:
        return None, problem
    digits = 3 if scale == 1 else 2
    lines = []
    for title, margin in margins.items():
        mean, low, high = comparisons[title].shown(scale, digits)
        lines.append(f"{title} {mean} ({low} to {high}; paper {scale * margin:+.{digits}f})")
    holds = every(rule(comparisons[title], margin) for title, margin in margins.items())
    lead = ""
    if holds is None:
        intervals = "interval is" if len(margins) == 1 else "intervals are"
        lead = f"The {intervals} too wide to tell. "
    elif holds and len(margins) > 1:
        lead = "Better in all of them. "
    return holds, f"{lead}{'; '.join(lines)} ({seeds_of(comparisons.values())} paired seeds)."


def superior(comparison: Comparison, margin: float) -> Outcome:
    """Better after Holm correction; not, if the interval lies below the paper's margin."""
    if comparison.firm == "better":
        return True
    return False if comparison.interval[1] < margin else None


def matches(comparison: Comparison, margin: float) -> Outcome:
    """At least as good, whatever the paper's margin."""
    return tested("holds_up", *comparison.interval, margin)


def every(outcomes: Iterable[Outcome]) -> Outcome:
    """Whether all of some tests succeed; ``None`` if none fails but some cannot tell.

    Examples:
        >>> every([True, True]), every([True, None]), every([None, False])
        (True, None, False)
    """
    outcomes = list(outcomes)
    return False if False in outcomes else None if None in outcomes or not outcomes else True


def outcome(
    test: str,
    comparisons: Mapping[str, Comparison],
    others: Iterable[str],
    margins: Mapping[str, float] | None = None,
) -> Outcome:
    """Whether a test of :func:`tested` succeeds against every one of some arms.

    ``None`` if an arm cannot be compared, or the intervals are too wide to tell. Margins are the
    differences that the paper reports by arm, :data:`SLACK` where it says nothing.
    """
    usable = {label: pair for label, pair in comparisons.items() if not _problem(pair)}
    return every(
        tested(test, *usable[label].interval, (margins or {}).get(label, SLACK))
        if label in usable
        else None
        for label in others
    )


def tested(test: str, low: float, high: float, margin: float) -> Outcome:
    """What the ends of an interval, above 0 where ours is better, and the paper's margin tell."""
    if test == "loses":  # the paper has ours behind
        return tested("beats", -high, -low, abs(margin))
    if test == "beats":
        return True if low > 0 else False if high < margin else None
    if test == "holds_up":
        return True if low > -SLACK else False if high < 0 else None
    assert test == "level"
    if low > SLACK or high < -SLACK:
        return False
    return True if low > -SLACK and high < SLACK else None


def _problem(comparison: Comparison) -> str:
    """Why a comparison cannot be judged; empty if it can."""
    if comparison.verdict == "not comparable":
        return f"Cannot be compared: {comparison.why}."
    if comparison.seeds < LEAST_SEEDS:
        return f"Only {comparison.seeds} paired seeds, {LEAST_SEEDS} are the least."
    return ""
