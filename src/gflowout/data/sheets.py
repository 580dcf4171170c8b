"""Contact sheets of data sets: images with classes, corruptions, rotations, frost, questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.core.random import generator
from gflowout.data import store
from gflowout.data.corruptions import KINDS, SEVERITIES, corrupt
from gflowout.data.errors import DataError, check_images
from gflowout.data.formats import read_picture
from gflowout.data.images import load_corrupted, load_images, published_corruptions
from gflowout.data.overlays import OVERLAYS, load_overlays
from gflowout.data.shifts import rotate
from gflowout.data.store import entry

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 96  # approximate width of enlarged images, in pixels
_QUESTION_SIDE = 224  # width of an image with a question below it
_OVERLAY_SIDE = 320
_GAP = 8
_TEXT, _TITLE = 14, 18  # font sizes, in pixels
_INK, _PALE = (20, 20, 20), (90, 90, 90)
_PAPER = (226, 228, 232)  # grey, so that both white and black images have a visible edge


@dataclass(frozen=True)
class Block:
    """Rows of the same images under different treatments: label and uint8 [N, C, H, W] of each."""

    title: str
    rows: tuple[tuple[str, Tensor], ...]


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
    """Draw a few examples of a data set: by default images of its test set with their classes.

    ``corruptions``, of all severities or of one, and ``rotated`` show the same images under
    different treatments instead; ``rows`` then counts rotations. ``seed`` is that of the choice of
    examples, and of corruptions and rotations. An option that does not apply to the data set raises
    ``ValueError``, a data set without images :class:`DataError`.
    """
    wanted = entry(name)
    checks.integer("seed", seed, low=0)
    for option, number in (("rows", rows), ("columns", columns)):
        if number is not None:
            checks.integer(option, number, low=1)
    if severity is not None and severity not in SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity!r}")
    if wanted.kind in ("clinical", "text"):
        what = "stays" if wanted.kind == "clinical" else "sentences"
        raise DataError(
            f"{name}: has no images to show; `gflowout data check {name}` counts {what}"
        )
    if wanted.kind != "images" and (corruptions or severity or rotated):
        raise ValueError(f"corruptions and rotations are for sets of images, not for {name!r}")
    if wanted.kind == "overlays":
        return _overlays(data_dir, columns or 3)
    if wanted.kind == "vqa":
        return _questions(name, data_dir, split, rows or 3, columns or 4, seed)
    levels = SEVERITIES if severity is None else (severity,)
    if name.endswith("-c"):
        if rotated or split:
            raise ValueError(f"rotations and splits are for clean images, not for {name!r}")
        return _published(name, data_dir, corruptions, levels, columns or 10, seed)
    if rotated and corruptions:
        raise ValueError("corruptions and rotations go on separate sheets")
    if severity is not None and not corruptions:
        raise ValueError("severity is for corruptions; name one")
    columns = columns or 10
    images = load_images(name, split or "test", data_dir, partial=True)
    number = columns if corruptions or rotated else columns * (rows or 5)
    some = images.subset(choose(images.labels, len(images.classes), number, columns, seed))
    words = [some.classes[label] for label in some.labels.tolist()]
    title = f"{name}, {some.split}"
    if corruptions:
        parts = _corrupted(some.images, corruptions, levels, data_dir, seed)
        return blocks(parts, words, title=f"{title}: corruptions by severity")
    if rotated:
        turns = range(rows or 3)
        turned = [(f"turned {turn + 1}", rotate(some.images, seed=seed + turn)) for turn in turns]
        part = Block("random angles", (("as it is", some.images), *turned))
        return blocks([part], words, title=f"{title}: rotations")
    title += f": {len(some)} of {len(images):,}"
    return sheet(some.images, words, columns=columns, title=title)


def choose(labels: Tensor, classes: int, number: int, columns: int, seed: int) -> Tensor:
    """Indices of examples, drawn without replacement.

    If a row holds every class, classes take turns, so that each column shows one of them.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "sheet"))
    if classes <= columns:
        drawn = labels[order]
        turn = torch.empty_like(drawn)
        for label in range(classes):
            same = drawn == label
            turn[same] = torch.arange(int(same.sum()))
        order = order[(turn * classes + drawn).argsort(stable=True)]
    return order[:number]


def _corrupted(
    images: Tensor,
    kinds: Sequence[str],
    levels: Sequence[int],
    data_dir: str | Path | None,
    seed: int,
) -> list[Block]:
    for kind in kinds:
        checks.choice("corruption", kind, KINDS)
    overlays = load_overlays(data_dir) if "frost" in kinds else None
    parts = []
    for kind in kinds:
        rows = [
            (str(level), corrupt(images, kind, level, seed=seed, overlays=overlays))
            for level in levels
        ]
        parts.append(Block(kind, (("clean", images), *rows)))
    return parts


def _published(
    name: str,
    data_dir: str | Path | None,
    kinds: Sequence[str],
    levels: Sequence[int],
    columns: int,
    seed: int,
) -> Image:
    """The same images in every published file, as all files have them in the same order."""
    parts, words, chosen = [], [], None
    for kind in kinds or published_corruptions(store.locate(name, data_dir)):
        rows = []
        for level in levels:
            images = load_corrupted(name, kind, level, data_dir)
            if chosen is None:
                chosen = choose(images.labels, len(images.classes), columns, columns, seed)
                words = [images.classes[label] for label in images.labels[chosen].tolist()]
            rows.append((str(level), images.images[chosen]))
        parts.append(Block(kind, tuple(rows)))
    return blocks(parts, words, title=f"{name}: published corruptions by severity")


def _overlays(data_dir: str | Path | None, columns: int) -> Image:
    overlays = load_overlays(data_dir)
    pictures = [_shrunk(picture(image), _OVERLAY_SIDE) for image in overlays]
    words = [
        f"{file}, {image.shape[2]}x{image.shape[1]}"
        for file, image in zip(OVERLAYS, overlays, strict=True)
    ]
    return sheet(pictures, words, columns=columns, scale=1, title="frost: overlays")


def _questions(
    name: str, data_dir: str | Path | None, split: str | None, rows: int, columns: int, seed: int
) -> Image:
    from gflowout.data import vqa

    source = vqa.SOURCES[name]
    folder = store.find(name, data_dir)
    if name == "vqa-v2":
        raise DataError(f"{folder}: VQA v2 is read as features of regions, not as pictures")
    split = checks.choice("split", split or source.evaluation, source.splits)
    questions = source.read(split, folder)
    order = torch.randperm(len(questions), generator=generator(seed, "sheet"))
    chosen = order[: rows * columns].tolist()
    names = [questions.picture_names[index] for index in questions.image_index[chosen].tolist()]
    pictures = [_shrunk(read_picture(folder / name), _QUESTION_SIDE) for name in names]
    words = [f"{questions.questions[row]}\nanswer: {questions.main[row]}" for row in chosen]
    scale = max(1, _QUESTION_SIDE // max(max(image.size) for image in pictures))
    title = f"{name}, {split}: {len(chosen)} of {len(questions):,} questions"
    return sheet(pictures, words, columns=columns, scale=scale, title=title, lines=4)


def picture(image: Tensor) -> Image:
    """Convert a tensor, uint8 [C, H, W] with one or three channels, to a Pillow image."""
    check_images("image", image[None])
    colours = image.expand(3, -1, -1).permute(1, 2, 0).contiguous()
    height, width = colours.shape[:2]
    drawn: Image = _pillow("Image").frombytes("RGB", (width, height), colours.numpy().tobytes())
    return drawn


def sheet(
    images: Tensor | Sequence[Image],
    captions: Sequence[str],
    *,
    columns: int = 10,
    scale: int | None = None,
    title: str = "",
    lines: int = 2,
) -> Image:
    """Draw images, uint8 [N, C, H, W] or pictures of any size, in a grid with captions below.

    ``scale`` enlarges each pixel to a square; by default so that small images are about 96 pixels
    wide. A paragraph of a caption has at most so many ``lines``; a longer one ends in three dots.
    """
    checks.integer("columns", columns, low=1)
    pictures = [picture(image) for image in images] if isinstance(images, Tensor) else list(images)
    if not pictures or len(pictures) != len(captions):
        got = f"{len(captions)} for {len(pictures)}"
        raise ValueError(f"captions must be one for each of at least one image, got {got}")
    pictures = _enlarged(pictures, scale)
    width = max(image.width for image in pictures)
    wrapped = [wrap(caption, width, lines) for caption in captions]
    rows = [slice(start, start + columns) for start in range(0, len(pictures), columns)]
    return _stack([_row(pictures[row], wrapped[row], width) for row in rows], title)


def blocks(
    parts: Sequence[Block], headings: Sequence[str], *, scale: int | None = None, title: str = ""
) -> Image:
    """Draw blocks one below the other: a column per image, with a heading; a row per treatment."""
    rows = [row for part in parts for row in part.rows]
    if not rows or any(len(images) != len(headings) for _, images in rows):
        got = f"{len(headings)} for rows of {sorted({len(images) for _, images in rows})}"
        raise ValueError(f"headings must be one for each image of a row, got {got}")
    margin = _GAP + max(int(_font(_TEXT).getlength(label)) for label, _ in rows)
    drawn = [_enlarged([picture(image) for image in images], scale) for _, images in rows]
    width = drawn[0][0].width
    strips = [_row([], [wrap(heading, width, 2) for heading in headings], width, margin)]
    remaining = iter(drawn)
    for part in parts:
        strips.append(_line_of_text(part.title))
        strips += [_row(next(remaining), [], width, margin, label) for label, _ in part.rows]
    return _stack(strips, title)


def wrap(text: str, width: int, lines: int) -> list[str]:
    """Break a text into lines of at most ``width`` pixels.

    Every paragraph gets at most ``lines`` lines; what is left over becomes three dots.
    """
    return [line for paragraph in text.split("\n") for line in _wrap(paragraph, width, lines)]


def _wrap(text: str, width: int, lines: int) -> list[str]:
    font = _font(_TEXT)
    wrapped: list[str] = []
    for word in text.split():
        joined = f"{wrapped[-1]} {word}" if wrapped else word
        if wrapped and font.getlength(joined) <= width:
            wrapped[-1] = joined
        else:
            wrapped.append(word)
    cut = len(wrapped) > lines
    wrapped = wrapped[:lines]
    for index, line in enumerate(wrapped):
        shown = line + "..." if cut and index == lines - 1 else line
        while line and font.getlength(shown) > width:
            line = line[:-1]
            shown = line.rstrip() + "..."
        wrapped[index] = shown
    return wrapped


def _shrunk(image: Image, side: int) -> Image:
    """Shrink an image, if need be, so that no side is longer than ``side`` pixels."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    return small


def _enlarged(pictures: list[Image], scale: int | None) -> list[Image]:
    if scale is None:
        scale = max(1, round(_SIDE / max(max(image.size) for image in pictures)))
    checks.integer("scale", scale, low=1)
    nearest = _pillow("Image").Resampling.NEAREST
    return [
        image.resize((image.width * scale, image.height * scale), nearest) for image in pictures
    ]


def _row(
    pictures: list[Image], captions: list[list[str]], width: int, margin: int = 0, label: str = ""
) -> Image:
    """A strip with a label in the margin, pictures on a common base line, and captions below."""
    tall = max((image.height for image in pictures), default=0)
    lines = max(map(len, captions), default=0)
    columns = max(len(pictures), len(captions))
    strip = _paper(
        margin + _GAP + columns * (width + _GAP),
        tall + _GAP + (lines * _line(_TEXT) + _GAP if lines else 0),
    )
    pen = _pillow("ImageDraw").Draw(strip)
    pen.text((margin, tall // 2), label, fill=_PALE, font=_font(_TEXT), anchor="rm")
    lefts = [margin + _GAP + column * (width + _GAP) for column in range(columns)]
    for left, image in zip(lefts, pictures, strict=False):
        strip.paste(image, (left + (width - image.width) // 2, tall - image.height))
    for left, caption in zip(lefts, captions, strict=False):
        for number, line in enumerate(caption):
            place = (left + width // 2, tall + _GAP // 2 + number * _line(_TEXT))
            pen.text(place, line, fill=_INK, font=_font(_TEXT), anchor="ma")
    return strip


def _line_of_text(title: str) -> Image:
    strip = _paper(int(_font(_TITLE).getlength(title)) + 2 * _GAP, _line(_TITLE) + _GAP)
    pen = _pillow("ImageDraw").Draw(strip)
    pen.text((_GAP, 0), title, fill=_INK, font=_font(_TITLE), anchor="la")
    return strip


def _stack(strips: list[Image], title: str) -> Image:
    """Strips one below the other, under a title."""
    if title:
        strips = [_line_of_text(title), *strips]
    width = max(strip.width for strip in strips)
    sheet = _paper(width, _GAP + sum(strip.height for strip in strips))
    top = _GAP
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height
    return sheet


def _paper(width: int, height: int) -> Image:
    empty: Image = _pillow("Image").new("RGB", (width, height), _PAPER)
    return empty


def _pillow(module: str) -> Any:
    return require(f"PIL.{module}", extra="data", purpose="contact sheets")


@cache
def _font(size: int) -> Any:
    return _pillow("ImageFont").load_default(size)


def _line(size: int) -> int:
    return round(size * 1.3)
