"""What contact sheets show of each kind of data set; :mod:`gflowout.data.show` draws them.

Pictures with their classes, corruptions by severity, rotations, frost, questions with answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.core.random import generator
from gflowout.data import show, store
from gflowout.data.catalog import entry
from gflowout.data.corruptions import KINDS, SEVERITIES, corrupt
from gflowout.data.errors import DataError
from gflowout.data.images import ImageSet, load_corrupted, load_images
from gflowout.data.overlays import OVERLAYS, load_overlays
from gflowout.data.shifts import rotate

if TYPE_CHECKING:
    from PIL.Image import Image

_QUESTION_SIDE = 224  # pixels of a picture with a question under it
_OVERLAY_SIDE = 320


def contact_sheet(
    name: str,
    data_dir: str | Path | None = None,
    *,
    split: str | None = None,
    rows: int | None = None,
    columns: int | None = None,
    corruptions: tuple[str, ...] = (),
    severity: int | None = None,
    rotated: bool = False,
    seed: int = 0,
) -> Image:
    """Draw a few examples of a data set.

    Args:
        name: Name of the data set.
        data_dir: Directory of all data sets. Default: ``$GFLOWOUT_DATA``, or the user's cache.
        split: Part of the data. Default: ``"test"`` if there is one.
        rows: Rows of examples; of rotations, if ``rotated``.
        columns: Examples in a row.
        corruptions: Show these corruptions of the same images instead of many images.
        severity: One severity, 1 to 5. Default: all.
        rotated: Show rotations of the same images.
        seed: Of the choice of examples and of what is done to them.

    Raises:
        MissingDataError: If the data set, or frost for the corruption frost, is not there.
        DataError: If it is damaged, or is no set of images.
        ValueError: If an option does not apply to the data set.
    """
    wanted = entry(name)
    checks.integer("seed", seed, low=0)
    for option, number in (("rows", rows), ("columns", columns)):
        if number is not None:
            checks.integer(option, number, low=1)
    if severity is not None and severity not in SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity!r}")
    if wanted.kind == "clinical":
        raise DataError(f"{name}: has no images to show; `gflowout data check {name}` counts stays")
    if wanted.kind != "images" and (corruptions or severity or rotated):
        raise ValueError(f"corruptions and rotations are for sets of images, not for {name!r}")
    if wanted.kind == "overlays":
        return _overlays(data_dir, columns or 3)
    if wanted.kind == "vqa":
        return _questions(name, data_dir, split, rows or 3, columns or 4, seed)
    if name.endswith("-c"):
        if rotated or split:
            raise ValueError(f"rotations and splits are for clean images, not for {name!r}")
        return _published(name, data_dir, corruptions, severity, columns or 10, seed)
    if rotated and corruptions:
        raise ValueError("corruptions and rotations go on separate sheets")
    if severity is not None and not corruptions:
        raise ValueError("severity is for corruptions; name one")
    images = load_images(name, split or "test", data_dir, partial=True)
    treated = bool(corruptions) or rotated
    number = (columns or 10) * (1 if treated else rows or 5)
    some = images.subset(choose(images.labels, len(images.classes), number, columns or 10, seed))
    words = [some.classes[label] for label in some.labels.tolist()]
    title = f"{name}, {some.split}"
    if corruptions:
        parts = _corrupted(some.images, corruptions, severity, data_dir, seed)
        return show.blocks(parts, words, title=f"{title}: corruptions by severity")
    if rotated:
        turns = [
            (f"turned {turn + 1}", rotate(some.images, seed=seed + turn))
            for turn in range(rows or 3)
        ]
        part = show.Block("random angles", (("as it is", some.images), *turns))
        return show.blocks([part], words, title=f"{title}: rotations")
    title += f": {len(some)} of {len(images):,}"
    return show.sheet(some.images, words, columns=columns or 10, title=title)


def choose(labels: Tensor, classes: int, number: int, columns: int, seed: int) -> Tensor:
    """Places of some examples, drawn without replacement.

    If a row holds every class, classes take turns, so that each column shows one of them.

    Examples:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> labels[choose(labels, 2, 4, 2, seed=0)]
        tensor([0, 1, 0, 1])
    """
    order = torch.randperm(len(labels), generator=generator(seed, "sheet"))
    if classes <= columns:
        drawn = labels[order]
        turn = torch.empty_like(drawn)
        for label in range(classes):
            mine = drawn == label
            turn[mine] = torch.arange(int(mine.sum()))
        order = order[(turn * classes + drawn).argsort(stable=True)]
    return order[:number]


def _corrupted(
    images: Tensor,
    kinds: tuple[str, ...],
    severity: int | None,
    data_dir: str | Path | None,
    seed: int,
) -> list[show.Block]:
    for kind in kinds:
        checks.choice("corruption", kind, KINDS)
    overlays = load_overlays(data_dir) if "frost" in kinds else None
    shown = (0, *SEVERITIES) if severity is None else (0, severity)
    return [
        show.Block(
            kind,
            tuple(
                (
                    str(level) if level else "clean",
                    corrupt(images, kind, level, seed=seed, overlays=overlays),
                )
                for level in shown
            ),
        )
        for kind in kinds
    ]


def _published(
    name: str,
    data_dir: str | Path | None,
    kinds: tuple[str, ...],
    severity: int | None,
    columns: int,
    seed: int,
) -> Image:
    """The same images in every published file: the order of images is the same in all of them."""
    there = sorted(path.stem for path in store.locate(name, data_dir).glob("*.npy"))
    parts, words, rows = [], [], None
    for kind in kinds or tuple(stem for stem in there if stem != "labels"):
        shown = []
        for level in SEVERITIES if severity is None else (severity,):
            images: ImageSet = load_corrupted(name, kind, level, data_dir)
            if rows is None:
                rows = choose(images.labels, len(images.classes), columns, columns, seed)
                words = [images.classes[label] for label in images.labels[rows].tolist()]
            shown.append((str(level), images.images[rows]))
        parts.append(show.Block(kind, tuple(shown)))
    return show.blocks(parts, words, title=f"{name}: published corruptions by severity")


def _overlays(data_dir: str | Path | None, columns: int) -> Image:
    overlays = load_overlays(data_dir)
    pictures = [show.fit(show.picture(image), _OVERLAY_SIDE) for image in overlays]
    words = [
        f"{file}, {image.shape[2]}x{image.shape[1]}"
        for file, image in zip(OVERLAYS, overlays, strict=True)
    ]
    return show.sheet(pictures, words, columns=columns, scale=1, title="frost: overlays")


def _questions(
    name: str,
    data_dir: str | Path | None,
    split: str | None,
    rows: int,
    columns: int,
    seed: int,
) -> Image:
    from gflowout.data import vqa

    source = vqa.SOURCES[name]
    folder = source.find(data_dir)
    if name == "vqa-v2":
        raise DataError(f"{folder}: VQA v2 is read as features of regions, not as pictures")
    split = checks.choice("split", split or source.evaluation, source.splits)
    questions = source.read(split, folder)
    order = torch.randperm(len(questions), generator=generator(seed, "sheet"))
    chosen = order[: rows * columns].tolist()
    pictures = [
        _opened(folder / questions.pictures[int(questions.picture[place])]) for place in chosen
    ]
    words = [f"{questions.texts[place]}\nanswer: {questions.main[place]}" for place in chosen]
    scale = max(1, _QUESTION_SIDE // max(max(each.size) for each in pictures))
    title = f"{name}, {split}: {len(chosen)} of {len(questions):,} questions"
    return show.sheet(pictures, words, columns=columns, scale=scale, title=title, lines=4)


def _opened(path: Path) -> Image:
    pillow = require("PIL.Image", extra="data", purpose="contact sheets")
    try:
        with pillow.open(path) as file:
            return show.fit(file, _QUESTION_SIDE)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a picture ({error}); get it again") from error
