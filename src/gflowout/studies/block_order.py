"""Robustness again, with BatchNorm before convolution in the blocks of ResNet-18 (appendix).

The same curves as in :mod:`gflowout.studies.robustness`, whose trials serve here, too: every
arm takes over what it tuned with the usual order.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflowout.runs import Run
from gflowout.studies import images, images_section, robustness
from gflowout.studies.framework import sections
from gflowout.studies.framework.claims import entry
from gflowout.studies.framework.content import Block, Section
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record
from gflowout.studies.framework.study import Chosen, Study
from gflowout.studies.images import CIFAR, TITLES
from gflowout.studies.robustness import work

__all__ = ["STUDY", "runs", "section", "work"]

NAME = "block-order"
_FEWER = {"test": 600, "corrupted": 200}
"""Test images of "cpu": fewer than in robustness, of which this is a side line."""


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm with the second order."""
    own = {"backbone.order": "bn-conv", **(_FEWER if preset == "cpu" else {})}
    options = images.scored_images(preset, images.ONE_CIFAR[preset], **own)
    return images.runs(NAME, preset, chosen, images.ONE_CIFAR[preset], options)


def section(records: Sequence[Record]) -> Section:
    """Tables, curves, comparisons and the claim."""

    def describe(data: str) -> tuple[list[Block], list[Compared]]:
        what = f"accuracy on corrupted {TITLES[data]}, BatchNorm first"
        return [
            robustness.table(records, data, paper=False),
            *robustness.severity_curves(records, data),
        ], [Compared(data, robustness.corrupted("accuracy"), what, percent=True)]

    there = sections.present(records, CIFAR) or CIFAR
    claim = robustness.matching("block-order.corruptions", records, there)
    return images_section.by_data(records, CIFAR, NAME, describe, [claim])


STUDY = Study(
    name=NAME,
    **entry(f"{NAME}.study"),
    work="gflowout.studies.block_order:work",
    runs=runs,
    section=section,
    tuning=lambda preset: images.tuning(preset, images.ONE_CIFAR[preset]),
    needs=robustness.with_frost,
)
