"""Contact sheets: many small pictures on one, with words under them. Pillow only.

Pure drawing: pictures and words go in, a picture comes out. What to draw from a data set is decided
in :mod:`gflowout.data.sheets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data import arrays

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 96  # pixels that small pictures are blown up to, or nearly
_GAP = 8
_TEXT, _TITLE = 14, 18  # sizes of letters, in pixels
_INK, _PALE = (20, 20, 20), (90, 90, 90)
_PAPER = (226, 228, 232)  # grey, so that white pictures and black ones have an edge
_PURPOSE = "contact sheets"


@dataclass(frozen=True)
class Block:
    """Rows of the same pictures under different treatment.

    Attributes:
        title: What stands above the rows.
        rows: For each row what stands left of it, and its pictures, uint8 [N, C, H, W].
    """

    title: str
    rows: tuple[tuple[str, Tensor], ...]


def picture(image: Tensor) -> Image:
    """A tensor as a picture.

    Args:
        image: uint8 [C, H, W], one channel or three.

    Examples:
        >>> import torch
        >>> white = picture(torch.full((3, 2, 4), 255, dtype=torch.uint8))
        >>> white.size, white.getpixel((0, 0))
        ((4, 2), (255, 255, 255))
    """
    pillow = require("PIL.Image", extra="data", purpose=_PURPOSE)
    arrays.images("image", image[None])
    colours = image.expand(3, -1, -1).permute(1, 2, 0).contiguous()
    height, width = colours.shape[:2]
    drawn: Image = pillow.frombytes("RGB", (width, height), colours.numpy().tobytes())
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
    """Draw pictures in a grid, each with its caption under it.

    Args:
        images: uint8 [N, C, H, W], or N pictures that may differ in size.
        captions: A text for each.
        columns: Pictures in a row.
        scale: How many times to enlarge them, each pixel to a square. Default: so that small
            pictures are about 96 pixels wide.
        title: A line above the grid.
        lines: Most lines of a paragraph of a caption; a longer one ends in three dots.
    """
    checks.integer("columns", columns, low=1)
    pictures = [picture(image) for image in images] if isinstance(images, Tensor) else list(images)
    if not pictures or len(pictures) != len(captions):
        raise ValueError(
            f"captions must be one for each of at least one image, got {len(captions)} for "
            f"{len(pictures)}"
        )
    pictures = _enlarged(pictures, scale)
    columns = min(columns, len(pictures))
    width = max(each.width for each in pictures)
    font = _font(_TEXT)
    wrapped = [wrap(caption, width, lines) for caption in captions]
    rows = [slice(start, start + columns) for start in range(0, len(pictures), columns)]
    heights = [
        (
            max(each.height for each in pictures[row]),
            max(len(caption) for caption in wrapped[row]) * _line(_TEXT),
        )
        for row in rows
    ]
    top = _GAP + (_line(_TITLE) + _GAP if title else 0)
    size = (
        _GAP + columns * (width + _GAP),
        top + sum(tall + text + 2 * _GAP for tall, text in heights),
    )
    paper, pen = _paper(size, title)
    for row, (tall, text) in zip(rows, heights, strict=True):
        for place, (each, caption) in enumerate(zip(pictures[row], wrapped[row], strict=True)):
            left = _GAP + place * (width + _GAP)
            paper.paste(each, (left + (width - each.width) // 2, top + tall - each.height))
            for number, line in enumerate(caption):
                position = (left + width // 2, top + tall + _GAP // 2 + number * _line(_TEXT))
                pen.text(position, line, fill=_INK, font=font, anchor="ma")
        top += tall + text + 2 * _GAP
    return paper


def blocks(
    parts: Sequence[Block],
    headings: Sequence[str],
    *,
    scale: int | None = None,
    title: str = "",
) -> Image:
    """Draw blocks of rows one below the other: columns are pictures, rows are treatments.

    Args:
        parts: The blocks, with as many pictures in each row as there are headings.
        headings: A text for each column.
        scale: As in :func:`sheet`.
        title: A line above everything.
    """
    rows = [row for part in parts for row in part.rows]
    if not rows or any(len(images) != len(headings) for _, images in rows):
        raise ValueError(
            f"headings must be one for each image of a row, got {len(headings)} for rows of "
            f"{sorted({len(images) for _, images in rows})}"
        )
    drawn = [_enlarged([picture(image) for image in images], scale) for _, images in rows]
    width, height = drawn[0][0].size
    font = _font(_TEXT)
    margin = _GAP + max(int(font.getlength(label)) for label, _ in rows)
    tops = [wrap(heading, width, 2) for heading in headings]
    top = _GAP + (_line(_TITLE) + _GAP if title else 0)
    head = max(len(lines) for lines in tops) * _line(_TEXT) + _GAP // 2
    size = (
        margin + _GAP + len(headings) * (width + _GAP),
        top + head + len(rows) * (height + _GAP) + len(parts) * (_line(_TITLE) + _GAP),
    )
    paper, pen = _paper(size, title)
    lefts = [margin + _GAP + place * (width + _GAP) for place in range(len(headings))]
    for left, lines in zip(lefts, tops, strict=True):
        for number, line in enumerate(lines):
            position = (left + width // 2, top + number * _line(_TEXT))
            pen.text(position, line, fill=_INK, font=font, anchor="ma")
    top += head
    waiting = iter(drawn)
    for part in parts:
        pen.text((_GAP, top), part.title, fill=_INK, font=_font(_TITLE), anchor="la")
        top += _line(_TITLE) + _GAP // 2
        for label, _ in part.rows:
            pen.text((margin, top + height // 2), label, fill=_PALE, font=font, anchor="rm")
            for left, each in zip(lefts, next(waiting), strict=True):
                paper.paste(each, (left, top))
            top += height + _GAP
        top += _GAP // 2
    return paper


def wrap(text: str, width: int, lines: int) -> list[str]:
    """Break a text into lines that fit a width in pixels.

    Args:
        text: One or more paragraphs.
        width: In pixels.
        lines: Most lines of a paragraph; what is left over becomes three dots.
    """
    paragraphs = (_wrap(paragraph, width, lines) for paragraph in text.split("\n"))
    return [line for paragraph in paragraphs for line in paragraph]


def _wrap(text: str, width: int, lines: int) -> list[str]:
    font = _font(_TEXT)
    found: list[str] = []
    for word in text.split():
        joined = f"{found[-1]} {word}" if found else word
        if found and font.getlength(joined) <= width:
            found[-1] = joined
        else:
            found.append(word)
    short = len(found) > lines
    found = found[:lines]
    for place, line in enumerate(found):
        last = short and place == lines - 1
        fits = line + "..." if last else line
        while line and font.getlength(fits) > width:
            line = line[:-1]
            fits = line.rstrip() + "..."
        found[place] = fits
    return found


def fit(image: Image, side: int) -> Image:
    """Shrink a picture, if need be, so that no side is longer than ``side`` pixels."""
    shrunk = image.convert("RGB")
    shrunk.thumbnail((side, side))
    return shrunk


def _enlarged(pictures: list[Image], scale: int | None) -> list[Image]:
    pillow = require("PIL.Image", extra="data", purpose=_PURPOSE)
    if scale is None:
        scale = max(1, round(_SIDE / max(max(each.size) for each in pictures)))
    checks.integer("scale", scale, low=1)
    nearest = pillow.Resampling.NEAREST
    return [each.resize((each.width * scale, each.height * scale), nearest) for each in pictures]


def _paper(size: tuple[int, int], title: str) -> tuple[Image, Any]:
    pillow = require("PIL.Image", extra="data", purpose=_PURPOSE)
    drawing = require("PIL.ImageDraw", extra="data", purpose=_PURPOSE)
    wanted = int(_font(_TITLE).getlength(title)) + 2 * _GAP
    paper: Image = pillow.new("RGB", (max(size[0], wanted), size[1]), _PAPER)
    pen = drawing.Draw(paper)
    if title:
        pen.text((_GAP, _GAP), title, fill=_INK, font=_font(_TITLE), anchor="la")
    return paper, pen


@cache
def _font(size: int) -> Any:
    return require("PIL.ImageFont", extra="data", purpose=_PURPOSE).load_default(size)


def _line(size: int) -> int:
    return round(size * 1.3)
