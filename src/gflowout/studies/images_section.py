"""What sections of the studies on images say of their setting, and whether it decides a claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gflowout.core.text import counted
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import entry, out_of_reach, paper
from gflowout.studies.framework.content import Block, Claim, Section, Text
from gflowout.studies.framework.statistics import Metric, Record, by_seed
from gflowout.studies.images import CIFAR, TITLES


def by_data(
    records: Sequence[Record],
    names: Sequence[str],
    study: str,
    describe: Callable[[str], tuple[Sequence[Block], Sequence[sections.Compared]]],
    claims: Sequence[Claim],
) -> Section:
    """A section with the blocks and comparisons of each data set that has records."""
    there = sections.present(records, names)
    blocks: list[Block] = []
    compared: list[sections.Compared] = []
    for data in there:
        own, metrics = describe(data)
        blocks += [Text([setting(records, data)]), *own]
        compared += metrics
    findings, details = sections.against_others(records, compared)
    if there:
        blocks += [Text([entry(f"{study}.texts")["about"]]), *sections.pair_by_pair(details)]
        blocks += sections.at_equal_rates(records, compared)
    return Section(findings, blocks, claims, tuple(there))


def setting(records: Iterable[Record], data: str) -> str:
    """What was trained on and how many seeds are done, from the records."""
    records = list(records)
    options = next(record["options"] for record in records if record["data"] == data)
    epochs, limit = options["fit.epochs"], options.get("data.limit")
    network = "an MLP 784-300-100-10"
    if data != "mnist":
        width = options.get("backbone.width", 64)
        network = f"a ResNet-18 of width {width}" + ("" if width == 64 else " (the paper's: 64)")
    amount = "all training images there are" if limit is None else f"{limit:,} training images"
    return (
        f"{TITLES[data]}: {network}, {amount} (validation included), {counted(epochs, 'epoch')} at "
        f"most, {options['samples']} draws, {sections.seeds_done(records, data)}."
    )


def weak(
    records: Sequence[Record],
    data: Iterable[str],
    metric: Callable[[str], Metric] = lambda name: "clean/accuracy",
    arm: str = "gflowout",
) -> dict[str, str]:
    """By data why their networks tell nothing of the paper's; empty if they are good enough.

    ``metric``, by name of the data, is the accuracy of the arm to compare with the paper's.
    """
    reasons = {}
    for name in data:
        mean = sections.cell(by_seed(records, name, arm, metric(name)).values()).mean
        reasons[name] = out_of_reach(mean, paper("robustness")[name][arm][0], TITLES[name])
    return reasons


def scale(records: Iterable[Record]) -> str:
    """What to bear in mind where networks are smaller than the paper's; else nothing."""
    for record in records:
        options = record["options"]
        width, limit = options.get("backbone.width", 64), options.get("data.limit")
        if record["data"] in CIFAR and (width < 64 or limit is not None):
            images = "" if limit is None else f" and {limit:,} images to train and validate"
            return f" CIFAR here: a ResNet-18 of width {width} (the paper's: 64){images}."
    return ""
