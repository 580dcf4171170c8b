"""What was asked of the posterior over features, judged by stated rules. Not the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence

from gflowout.studies.features_arms import ARMS
from gflowout.studies.features_data import PROBLEMS
from gflowout.studies.framework.compare import Comparison, by_arm, by_seed, compare_all
from gflowout.studies.framework.content import Claim, Verdict
from gflowout.studies.framework.study import Record

OURS = "id-gflowout"
OWN = (OURS, "gflowout")
"""Arms of this library's method; all others are baselines."""
JUDGED = ("independent", "copies")
"""Problems that something was promised of."""
SEEDS = 5
"""With fewer nothing is judged."""
AREA = 0.95
FALSE = 0.1

_OPEN: Verdict = "open"


def claims(records: Sequence[Record], names: Sequence[str]) -> list[Claim]:
    """All that was promised, and what became of it.

    Args:
        records: Of runs that are done.
        names: Problems that have any.
    """
    made = []
    for data in JUDGED:
        if data in names:
            made += [_below(records, data), _area(records, data), _false(records, data)]
    return made


def _below(records: Sequence[Record], data: str) -> Claim:
    """Test NLL below that of every baseline, outside the paired 95 % interval."""
    text = f"{PROBLEMS[data].title}: NLL below that of every baseline."
    found = {
        arm: each
        for arm, each in compare_all(records, data, "test/nll", "low", OURS).items()
        if arm not in OWN
    }
    wanted = [arm.label for arm in ARMS.values() if arm.label not in OWN and not arm.only]
    missing = [ARMS[label].title for label in wanted if label not in found]
    if missing:
        return Claim(text, _OPEN, f"Not done: {', '.join(missing)}.")
    least = min(each.seeds for each in found.values())
    if least < SEEDS:
        return Claim(text, _OPEN, f"Only {least} paired seeds, {SEEDS} are the least.")
    closest = min(found, key=lambda arm: -found[arm].difference)
    why = (
        f"Closest is {ARMS[closest].title}: {_gap(found[closest])}, {least} paired seeds. Rule: "
        "the paired 95 % interval of the difference is below 0 for every baseline."
    )
    if all(each.verdict == "better" for each in found.values()):
        weak = [ARMS[arm].title for arm, each in found.items() if each.firm != "better"]
        also = f" After Holm's correction not for {', '.join(weak)}." if weak else ""
        return Claim(text, "holds", why + also)
    behind = [arm for arm, each in found.items() if each.verdict != "better"]
    names = ", ".join(f"{ARMS[arm].title} ({_gap(found[arm])})" for arm in behind)
    if any(found[arm].difference >= 0 for arm in behind):
        return Claim(text, "does not hold", f"Not below {names}. {why}")
    return Claim(text, _OPEN, f"Lower, but within the interval, for {names}. {why}")


def _area(records: Sequence[Record], data: str) -> Claim:
    """Mean AUROC of inclusion at least 0.95."""
    text = f"{PROBLEMS[data].title}: mean AUROC of inclusion of at least {AREA}."
    values = list(by_seed(records, data, OURS, "inclusion/auroc").values())
    if len(values) < SEEDS:
        return Claim(text, _OPEN, f"Only {len(values)} seeds, {SEEDS} are the least.")
    mean = sum(values) / len(values)
    why = f"{mean:.3f} over {len(values)} seeds, from {min(values):.3f} to {max(values):.3f}."
    return Claim(text, "holds" if mean >= AREA else "does not hold", why)


def _false(records: Sequence[Record], data: str) -> Claim:
    """At most 10 % of what is found at 0.5 is false, all seeds together."""
    text = f"{PROBLEMS[data].title}: at most {FALSE:.0%} false discoveries at 0.5."
    found = by_seed(records, data, OURS, "inclusion/found")
    false = by_seed(records, data, OURS, "inclusion/false")
    true = by_seed(records, data, OURS, "inclusion/true")
    if len(found) < SEEDS:
        return Claim(text, _OPEN, f"Only {len(found)} seeds, {SEEDS} are the least.")
    share = sum(false.values()) / max(1.0, sum(found.values()))
    why = (
        f"{sum(false.values()):.0f} of {sum(found.values()):.0f} features found in {len(found)} "
        f"seeds are false ({share:.1%}); {sum(true.values()) / len(found):.1f} of 5 are found on "
        "average."
    )
    if data == "copies":
        strict = by_seed(records, data, OURS, "inclusion/strict")
        wrong = sum(value * found[seed] for seed, value in strict.items() if seed in found)
        why += (
            " A copy counts as right where its original matters; were every copy false, the share "
            f"would be {wrong / max(1.0, sum(found.values())):.0%}."
        )
    return Claim(text, "holds" if share <= FALSE else "does not hold", why)


def help_or_not(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Of each problem: whom the posterior over features does not beat, and what it finds."""
    made = []
    for data in names:
        found = compare_all(records, data, "test/nll", "low", OURS)
        title = PROBLEMS[data].title
        if not found:
            continue
        if not any(each.verdict != "not comparable" for each in found.values()):
            made.append(f"{title}: too few seeds to say.")
            continue
        worse = _titles(found, "worse")
        same = _titles(found, "no difference seen")
        text = f"{title}: "
        if worse:
            text += f"it does not help: {', '.join(worse)} predict better. "
        elif same:
            text += f"no gain seen over {', '.join(same)}. "
        else:
            text += "it predicts better than all others. "
        if worse and same:
            text += f"No difference seen from {', '.join(same)}. "
        made.append(text + _told(records, data))
    return made or ["Nothing can be said yet."]


def _told(records: Sequence[Record], data: str) -> str:
    """How well it finds the features, where that is known."""
    areas = by_arm(records, data, "inclusion/auroc")
    if OURS not in areas:
        return ""
    mean = {arm: sum(values) / len(values) for arm, values in areas.items()}
    others = {arm: value for arm, value in mean.items() if arm not in OWN and arm in ARMS}
    text = f"AUROC of features {mean[OURS]:.2f}"
    if others:
        best = max(others, key=lambda arm: others[arm])
        text += f", the best other {others[best]:.2f} ({ARMS[best].title})"
    return f"{text}."


def _titles(found: dict[str, Comparison], verdict: str) -> list[str]:
    return [ARMS[arm].title for arm, each in found.items() if each.firm == verdict and arm in ARMS]


def _gap(found: Comparison) -> str:
    return f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
