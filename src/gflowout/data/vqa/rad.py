"""VQA-RAD: questions of clinicians about radiology pictures, one answer each.

Reads the release on OSF and the common copy with ``trainset.json`` and ``testset.json``. Training
and test questions are about the same pictures.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import locate
from gflowout.data.vqa.accuracy import TYPES
from gflowout.data.vqa.answers import normalise
from gflowout.data.vqa.files import AGAIN, entries, read_json, value
from gflowout.data.vqa.pictures import decode
from gflowout.data.vqa.sets import Questions
from gflowout.data.vqa.sources import Source

NAME = "vqa-rad"
SPLITS = {"train": "trainset.json", "test": "testset.json"}
SIZE = 224

_PUBLIC = "VQA_RAD Dataset Public.json"
_FOLDERS = ("images", "VQA_RAD Image Folder")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def read(split: str, folder: Path) -> Questions:
    """Read the questions of a split.

    Args:
        split: ``"train"`` or ``"test"``.
        folder: Folder with ``trainset.json`` and ``testset.json``, or with the public release,
            whose test questions have a ``phrase_type`` that starts with "test".
    """
    checks.choice("split", split, SPLITS)
    path = folder / SPLITS[split]
    public = not path.is_file() and (folder / _PUBLIC).is_file()
    if public:
        path = folder / _PUBLIC
    texts, ids, given, types, names = [], [], [], [], []
    closed_other = 0
    for position, record in enumerate(entries(path, read_json(path))):
        phrase = value(path, position, record, "phrase_type", str).strip().lower()
        if public and phrase.startswith("test") != (split == "test"):
            continue
        texts.append(value(path, position, record, "question", str).strip())
        ids.append(_number(path, position, record))
        given.append((str(value(path, position, record, "answer", (str, int, float))).strip(),))
        names.append(value(path, position, record, "image_name", str))
        closed = value(path, position, record, "answer_type", str).strip().upper() == "CLOSED"
        types.append(question_type(given[-1][0], closed=closed))
        closed_other += closed and types[-1] != 0
    home = picture_folder(folder).name
    listed = sorted(set(names))
    place = {name: position for position, name in enumerate(listed)}
    return Questions(
        name=NAME,
        split=split,
        texts=tuple(texts),
        ids=torch.tensor(ids, dtype=torch.int64),
        pictures=tuple(f"{home}/{name}" for name in listed),
        picture=torch.tensor([place[name] for name in names], dtype=torch.int64),
        answers=tuple(given),
        main=tuple(answer for (answer,) in given),
        types=torch.tensor(types, dtype=torch.int64),
        notes={"closed questions answered by neither yes nor no": closed_other},
    )


def _number(path: Path, position: int, record: Any) -> int:
    """Number of a question; some copies write it as text."""
    found = value(path, position, record, "qid", (int, str))
    if isinstance(found, str) and not found.strip().isdecimal():
        raise DataError(f"{path}: entry {position} has the 'qid' {found!r}, no number; {AGAIN}")
    return int(found)


def question_type(answer: str, *, closed: bool) -> int:
    """Return the type of a question, a position in ``TYPES``.

    A closed question with the answer yes or no is "yes/no"; an answer that is a number, in digits
    or as a word up to ten, makes "number"; anything else is "other". "None" is no number here: it
    says that nothing is seen.

    Examples:
        >>> [TYPES[question_type(a, closed=c)] for a, c in [("Yes", True), ("one", False)]]
        ['yes/no', 'number']
        >>> [TYPES[question_type(a, closed=c)] for a, c in [("left", True), ("5 cm", False)]]
        ['other', 'other']
    """
    plain = normalise(answer)
    if closed and plain in ("yes", "no"):
        return TYPES.index("yes/no")
    number = _NUMBER.fullmatch(plain) is not None and answer.strip().lower() != "none"
    return TYPES.index("number" if number else "other")


def picture_folder(folder: Path) -> Path:
    """Return the sub-folder of pictures."""
    for name in _FOLDERS:
        if (folder / name).is_dir():
            return folder / name
    raise MissingDataError(
        f"{folder}: has no sub-folder {' or '.join(map(repr, _FOLDERS))}; put the pictures there"
    )


def visual(
    folder: Path,
    names: tuple[str, ...],
    *,
    size: int = SIZE,
    fit: str = "pad",
    channels: int = 3,
    progress: bool = True,
) -> Tensor:
    """Read pictures, uint8 [M, channels, size, size].

    Proportions are kept by default (``fit="pad"``): they carry meaning in a radiograph, and its
    surroundings are black anyway. Other arguments as in
    :func:`gflowout.data.vqa.pictures.decode`.
    """
    paths = [folder / name for name in names]
    return decode(paths, size=size, fit=fit, channels=channels, progress=progress)


def pictures(folder: Path) -> int:
    """Count the pictures in a data set's folder."""
    return sum(1 for _ in picture_folder(folder).glob("*.jpg"))


SOURCE = Source(
    name=NAME,
    splits=tuple(SPLITS),
    evaluation="test",
    min_count=0,
    by_image=False,  # test questions are about the pictures of training
    find=partial(locate, NAME),
    read=read,
    visual=visual,
    options=("size", "fit", "channels", "progress"),
    pictures=pictures,
)
load = SOURCE.load
