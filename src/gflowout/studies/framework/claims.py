"""Claims and their verdicts: texts and rules from ``claims.toml``, judged on paired comparisons."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from gflowout.studies.framework.content import Claim, Verdict
from gflowout.studies.framework.statistics import Comparison, Metric, Record, compare_all, seeds_of

LEAST_SEEDS = 3
"""With fewer no claim is judged."""
SLACK = 0.01
"""A difference in a share or an AUROC that is taken for none: a point."""
Outcome = bool | None
"""Of a test: ``None`` if it cannot be made or the intervals are too wide to tell."""
VERDICTS: Mapping[bool, Mapping[Outcome, Verdict]] = {
    False: {True: "reproduced", False: "not reproduced", None: "not testable here"},
    True: {True: "holds", False: "does not hold", None: "open"},
}
"""Of the paper's claims, and of our own."""


@functools.cache
def _content() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("claims.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def entry(name: str) -> dict[str, Any]:
    """What ``claims.toml`` says of a claim, named by study and claim.

    Examples:
        >>> entry("ood.ensembles")["test"]
        'holds_up'
    """
    study, _, claim = name.partition(".")
    found: dict[str, Any] = _content()[study][claim]
    return {**entry(found["like"]), **found} if "like" in found else found


def paper(study: str) -> dict[str, Any]:
    """The paper's numbers of a study."""
    numbers: dict[str, Any] = _content()["paper"][study]
    return numbers


def template(name: str, outcome: Outcome, key: str = "", **values: Any) -> Claim:
    """A claim whose explanation is a template: ``why``, by default ``open`` without an outcome.

    Examples:
        >>> template("cost.twice", True, time=2.04).why.partition(". ")[2]
        'It takes 2.04 times, on a CPU.'
    """
    texts = entry(name)
    why = texts[key or ("open" if outcome is None and "open" in texts else "why")]
    verdict = VERDICTS[texts.get("own", False)][outcome]
    return Claim(texts["claim"].format(**values), verdict, why.format(**values))


def counted(name: str, outcomes: Mapping[str, Outcome], note: str = "") -> Claim:
    """A claim that holds if enough of some experiments agree.

    Args:
        name: Of the claim; ``needed`` of the experiments must agree, all by default, -1 for all but
            one.
        outcomes: By experiment.
        note: Added to the explanation.
    """
    texts = entry(name)
    needed = texts.get("needed", len(outcomes))
    needed = max(1, len(outcomes) + needed) if needed < 0 else needed
    told = {title: outcome for title, outcome in outcomes.items() if outcome is not None}
    good = [title for title, outcome in told.items() if outcome]
    missing = len(outcomes) - len(told)
    where = f": {', '.join(good)}" if good and len(told) > 1 else ""
    enough = "1 is needed" if needed == 1 else f"{needed} are needed"
    why = f"Rule: {texts['rule']}. Holds in {len(good)} of {len(told)}{where}; {enough}."
    if missing:
        why += f" {missing} more cannot be told from what has been run."
    holds = True if len(good) >= needed else None if len(good) + missing >= needed else False
    return Claim(texts["claim"], VERDICTS[False][holds], why + note)


def judge(
    name: str,
    records: Sequence[Record],
    experiments: Mapping[str, tuple[str, Metric]],
    margins: Mapping[str, Mapping[str, float]] | None = None,
    note: str = "",
) -> Claim:
    """A claim that its ``test`` judges by comparing arms in some experiments.

    Args:
        name: Of the claim.
        records: Of runs that are done.
        experiments: By title the data and the metric, of which high values are good.
        margins: By title and other arm the difference that the paper reports.
        note: Added to the explanation.
    """
    texts = entry(name)
    ours, others = texts.get("ours", "gflowout"), texts["others"]
    outcomes, widths = dict[str, Outcome](), list[float]()
    for title, (data, metric) in experiments.items():
        found = compare_all(records, data, metric, "high", ours, others)
        outcomes[title] = outcome(texts["test"], found, others, (margins or {}).get(title))
        widths += [one.high - one.low for one in found.values() if one.verdict != "not comparable"]
    if widths and texts.get("width"):
        mean = 50 * math.fsum(widths) / len(widths)
        note = f" Intervals are ±{mean:.1f} points on average.{note}"
    return counted(name, outcomes, note)


def by_margins(
    comparisons: Mapping[str, Comparison],
    margins: Mapping[str, float],
    rule: Callable[[Comparison, float], Outcome],
    *,
    scale: float = 1.0,
) -> tuple[Outcome, str]:
    """Whether a rule holds in every metric, and why.

    Args:
        comparisons: By title of the metric.
        margins: By title of the metric the difference that the paper reports.
        rule: :func:`superior` or :func:`matches`.
        scale: Of numbers in the sentence: 100 shows points of a percentage.

    Examples:
        >>> from gflowout.studies.framework.statistics import holm, paired
        >>> far = paired([0.60, 0.61, 0.62], [0.50, 0.52, 0.51], "high")
        >>> level = paired([0.50, 0.51, 0.50], [0.51, 0.50, 0.50], "high")
        >>> noisy = paired([0.50, 0.70, 0.40], [0.51, 0.50, 0.50], "high")
        >>> [by_margins({"F1": one}, {"F1": 0.05}, superior)[0] for one in (far, level, noisy)]
        [True, False, None]
        >>> close = paired([0.500, 0.501, 0.500], [0.500, 0.500, 0.500], "high")
        >>> by_margins({"accuracy": close}, {"accuracy": 0.0}, matches)[0]
        True
    """
    problem = next(filter(None, map(_problem, comparisons.values())), "")
    if problem:
        return None, problem
    digits = 3 if scale == 1 else 2
    lines = []
    for title, margin in margins.items():
        one = comparisons[title]
        mean, low, high, published = (
            f"{scale * value:+.{digits}f}" for value in (one.difference, one.low, one.high, margin)
        )
        lines.append(f"{title} {mean} ({low} to {high}; paper {published})")
    held = every(rule(comparisons[title], margin) for title, margin in margins.items())
    lead = ""
    if held is None:
        intervals = "interval is" if len(margins) == 1 else "intervals are"
        lead = f"The {intervals} too wide to tell. "
    elif held and len(margins) > 1:
        lead = "Better in all of them. "
    return held, f"{lead}{'; '.join(lines)} ({seeds_of(comparisons.values())} paired seeds)."


def superior(comparison: Comparison, margin: float) -> Outcome:
    """Better after Holm correction; not, if the interval lies below the paper's margin."""
    if comparison.firm == "better":
        return True
    return False if _interval(comparison)[1] < margin else None


def matches(comparison: Comparison, margin: float) -> Outcome:
    """At least as good, whatever the paper's margin."""
    return TESTS["holds_up"](*_interval(comparison), margin)


def every(outcomes: Iterable[Outcome]) -> Outcome:
    """Whether all of some tests succeed; ``None`` if none fails but some cannot tell.

    Examples:
        >>> every([True, True]), every([True, None]), every([None, False])
        (True, None, False)
    """
    known = list(outcomes)
    return False if False in known else None if None in known or not known else True


def outcome(
    test: str,
    comparisons: Mapping[str, Comparison],
    others: Iterable[str],
    margins: Mapping[str, float] | None = None,
) -> Outcome:
    """Whether a test succeeds against every one of some arms.

    Args:
        test: Name of one of :data:`TESTS`.
        comparisons: By arm.
        others: Labels of the arms.
        margins: By arm the difference that the paper reports; :data:`SLACK` where it says nothing.

    Returns:
        ``None`` if an arm cannot be compared, or the intervals are too wide to tell.

    Examples:
        >>> from gflowout.studies.framework.statistics import paired
        >>> wide = paired([0.3, 0.5, 0.4], [0.4, 0.3, 0.4], "high")
        >>> outcome("beats", {"mc": wide}, ["mc"]) is None
        True
    """
    usable = {label: one for label, one in comparisons.items() if not _problem(one)}
    return every(
        TESTS[test](*_interval(usable[label]), (margins or {}).get(label, SLACK))
        if label in usable
        else None
        for label in others
    )


def _beats(low: float, high: float, margin: float) -> Outcome:
    return True if low > 0 else False if high < margin else None


def _loses(low: float, high: float, margin: float) -> Outcome:
    return _beats(-high, -low, abs(margin))  # the paper has ours behind


def _holds_up(low: float, high: float, margin: float) -> Outcome:
    return True if low > -SLACK else False if high < 0 else None


def _level(low: float, high: float, margin: float) -> Outcome:
    if low > SLACK or high < -SLACK:
        return False
    return True if low > -SLACK and high < SLACK else None


TESTS: Mapping[str, Callable[[float, float, float], Outcome]] = {
    "beats": _beats, "loses": _loses, "holds_up": _holds_up, "level": _level,
}  # fmt: skip
"""What the ends of an interval, above 0 where ours is better, and the paper's margin tell."""


def _problem(comparison: Comparison) -> str:
    """Why a comparison cannot be judged; empty if it can."""
    if comparison.verdict == "not comparable":
        return f"Cannot be compared: {comparison.why}."
    if comparison.seeds < LEAST_SEEDS:
        return f"Only {comparison.seeds} paired seeds, {LEAST_SEEDS} are the least."
    return ""


def _interval(comparison: Comparison) -> tuple[float, float]:
    """The interval of the difference, turned so that above 0 ours is better."""
    if comparison.better == "high":
        return comparison.low, comparison.high
    return -comparison.high, -comparison.low
