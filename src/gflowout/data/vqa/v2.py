"""VQA v2: questions about COCO pictures, ten annotators each, with region features.

Reads the published JSON files and one ``.npz`` of bottom-up features per picture, in the layout of
the published MCAN code.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gflowout.core import checks
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import locate
from gflowout.data.vqa.accuracy import TYPES
from gflowout.data.vqa.answers import MIN_COUNT
from gflowout.data.vqa.files import AGAIN, entries, read_json, value
from gflowout.data.vqa.regions import FEATURES, REGIONS, Regions
from gflowout.data.vqa.sets import Questions
from gflowout.data.vqa.sources import Source

NAME = "vqa-v2"
SPLITS = {"train": "train2014", "val": "val2014", "test": "test2015", "test-dev": "test-dev2015"}
"""Splits and what their files call them. The answers of the test splits are not published."""

_FEATURES = {"test-dev": "test2015"}


def read(split: str, folder: Path) -> Questions:
    """Read the questions of a split, with their answers if those are published.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"test-dev"``.
        folder: Folder with the JSON files, or with a sub-folder ``vqa`` that has them.
    """
    checks.choice("split", split, SPLITS)
    part = SPLITS[split]
    path = _file(folder, f"v2_OpenEnded_mscoco_{part}_questions.json")
    listed = entries(path, read_json(path), "questions")
    ids, texts, pictures = [], [], []
    for position, record in enumerate(listed):
        ids.append(value(path, position, record, "question_id", int))
        texts.append(value(path, position, record, "question", str))
        pictures.append(value(path, position, record, "image_id", int))
    if len(set(ids)) != len(ids):
        raise DataError(f"{path}: {len(ids) - len(set(ids))} question ids occur twice; {AGAIN}")
    names = sorted(set(pictures))
    place = {name: position for position, name in enumerate(names)}
    part = _FEATURES.get(split, part)
    found = (
        _annotations(_file(folder, f"v2_mscoco_{part}_annotations.json"), path, ids, pictures)
        if not split.startswith("test")
        else [((), "", -1)] * len(ids)
    )
    given, main, types = zip(*found, strict=True)
    return Questions(
        name=NAME,
        split=split,
        texts=tuple(texts),
        ids=torch.tensor(ids),
        pictures=tuple(f"{part}/COCO_{part}_{number:012d}.jpg.npz" for number in names),
        picture=torch.tensor([place[number] for number in pictures]),
        answers=given,
        main=main,
        types=torch.tensor(types),
    )


def visual(
    folder: Path,
    names: tuple[str, ...],
    *,
    features_dir: str | Path | None = None,
    regions: int = REGIONS,
    features: int = FEATURES,
    cache_bytes: int = 1 << 29,
) -> Regions:
    """Open the region features of pictures; files are read when they are asked for.

    Args:
        folder: The data set's folder.
        names: Files, such as ``train2014/COCO_train2014_000000000009.jpg.npz``.
        features_dir: Folder with the sub-folders ``train2014`` and so on. Default: the data set's
            folder, or ``coco_extract`` in it or beside it.
        regions: Rows per picture; fewer regions are filled up with zeros.
        features: Numbers per region.
        cache_bytes: How much of what was read to keep in memory.
    """
    bases = [folder, folder / "coco_extract", folder.parent / "coco_extract"]
    if features_dir is not None:
        bases = [Path(features_dir).expanduser()]
    homes: dict[str, Path] = {}
    for part in dict.fromkeys(name.split("/")[0] for name in names):
        home = next((base for base in bases if (base / part).is_dir()), None)
        if home is None:
            raise MissingDataError(
                f"{bases[0] / part}: no such folder of region features, nor in "
                f"{', '.join(str(base) for base in bases[1:]) or 'any other place'}; unpack the "
                "features there or name their folder with features_dir="
            )
        homes[part] = home
    paths = [homes[name.split("/")[0]] / name for name in names]
    return Regions(paths, regions=regions, features=features, cache_bytes=cache_bytes)


def pictures(folder: Path) -> int:
    """Count the files of region features in a data set's folder."""
    return sum(
        1
        for base in (folder, folder / "coco_extract")
        for part in ("train2014", "val2014", "test2015")
        for _ in (base / part).glob("*.npz")
    )


def _file(folder: Path, name: str) -> Path:
    inner = folder / "vqa" / name
    return inner if inner.is_file() else folder / name


def _annotations(
    path: Path, asked: Path, ids: list[int], pictures: list[int]
) -> list[tuple[tuple[str, ...], str, int]]:
    """Answers, most frequent answer and type of each question, in the questions' order."""
    found: dict[int, tuple[tuple[str, ...], str, int]] = {}
    about = dict(zip(ids, pictures, strict=True))
    listed = entries(path, read_json(path, _shorten), "annotations")
    for position, record in enumerate(listed):
        number = value(path, position, record, "question_id", int)
        if about.get(number) != value(path, position, record, "image_id", int):
            raise DataError(
                f"{path}: entry {position} is about question {number} and picture "
                f"{record['image_id']}, which {asked.name} does not have; get both files again"
            )
        kind = value(path, position, record, "answer_type", str)
        given = value(path, position, record, "answers", list)
        if kind not in TYPES or not given or not all(isinstance(text, str) for text in given):
            raise DataError(
                f"{path}: entry {position} must have answers and one of the types "
                f"{', '.join(TYPES)}, got {kind!r} and {given!r}; {AGAIN}"
            )
        main = value(path, position, record, "multiple_choice_answer", str)
        found[number] = (tuple(given), main, TYPES.index(kind))
    missing = [number for number in ids if number not in found]
    if missing:
        raise DataError(
            f"{path}: has no answers to {len(missing)} questions of {asked.name}, the first is "
            f"{missing[0]}; get both files again"
        )
    return [found[number] for number in ids]


def _shorten(record: dict[str, Any]) -> Any:
    """Keep the text of an annotator's answer only: four million small dicts are many gigabytes."""
    text = record.get("answer")
    return sys.intern(text) if isinstance(text, str) and "question_id" not in record else record


SOURCE = Source(
    name=NAME,
    splits=tuple(SPLITS),
    evaluation="val",
    min_count=MIN_COUNT,
    by_image=True,  # evaluation is on new pictures
    find=partial(locate, NAME),
    read=read,
    visual=visual,
    options=("features_dir", "regions", "features", "cache_bytes"),
    pictures=pictures,
)
load = SOURCE.load
