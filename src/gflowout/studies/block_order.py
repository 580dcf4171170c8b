"""Robustness again, with BatchNorm before convolution in the blocks of ResNet-18 (appendix).

The same curves as in :mod:`gflowout.studies.robustness`, whose trials serve here, too: every
arm takes over what it tuned with the usual order.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflowout.runs import Context, Result, Run
from gflowout.studies import images, images_presets, robustness
from gflowout.studies import images_sections as say
from gflowout.studies.framework.compare import pair_by_pair
from gflowout.studies.framework.content import Block, Section, Text
from gflowout.studies.framework.study import TUNING, Chosen, Record, Study
from gflowout.studies.images import TITLES

NAME = "block-order"
_DATA = {"smoke": ("cifar10",), "cpu": ("cifar10",), "paper": images_presets.CIFAR}
"""Two hours of CIFAR-100 more are not in "cpu"."""
_ORDER = {"backbone.order": "bn-conv"}
_FEWER = {"test": 600, "corrupted": 200}
"""Test images of "cpu": less than in robustness, of which this is a side line."""


def work(run: Run, context: Context) -> Result:
    """A trial, or one network scored on clean, rotated and corrupted images."""
    return images.trial(run, context) if run.study == TUNING else images.curves(run, context)


def tuning(preset: str) -> list[Run]:
    """The trials of robustness on the same data."""
    return images.tuning(preset, _DATA[preset])


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm with the second order."""
    data = _DATA[preset]
    fewer = _FEWER if preset == "cpu" else {}
    options = images_presets.scored(preset, data, **_ORDER, **fewer)
    return images.runs(NAME, preset, chosen, data, options)


def section(records: Sequence[Record]) -> Section:
    """Tables, curves, comparisons and the claim."""
    there = say.present(records, images_presets.CIFAR)
    blocks: list[Block] = []
    findings, details = [], []
    for data in there:
        blocks.append(Text([f"{say.setting(records, data)}, {say.seeds_of(records, data)}."]))
        blocks.append(robustness.table(records, data, paper=False))
        blocks += say.severity_curves(records, data)
        what = f"accuracy on corrupted {TITLES[data]}, BatchNorm first"
        found = say.comparisons(records, data, say.corrupted("accuracy"), "high")
        findings += say.overview(found, what)
        details += say.sentences(found, what, percent=True)
    if there:
        how = (
            "Options were tuned with the usual order of the blocks and taken over by every arm "
            "alike. The paper has curves without numbers here, for accuracy; NLL and ECE are "
            "additions."
        )
        blocks += [Text([how]), *pair_by_pair(details)]
    claim = robustness.matching(
        records,
        there or images_presets.CIFAR,
        "With BatchNorm before convolution GFlowOut is at least level with the other dropout "
        "methods under corruption (appendix figure).",
    )
    return Section(findings, blocks, [claim], tuple(there))


STUDY = Study(
    name=NAME,
    title="Another order in the blocks",
    question="Does robustness depend on whether BatchNorm comes before or after convolution?",
    paper="Appendix, figure on block order",
    work="gflowout.studies.block_order:work",
    runs=runs,
    section=section,
    tuning=tuning,
    needs=images.with_frost,
)
