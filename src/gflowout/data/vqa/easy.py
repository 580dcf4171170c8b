"""easy-VQA: made-up questions about drawn shapes, one answer each.

Reads the folder of the published repository, which the Python package ``easy_vqa`` ships, too. The
package is never imported, only looked into.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import locate
from gflowout.data.vqa.accuracy import TYPES
from gflowout.data.vqa.files import AGAIN, entries, read_json
from gflowout.data.vqa.pictures import decode
from gflowout.data.vqa.sets import Questions
from gflowout.data.vqa.sources import Source

NAME = "easy-vqa"
SPLITS = {"train": "train", "test": "test"}
SIZE = 64


def package_folder() -> Path | None:
    """Return the data folder inside the installed package ``easy_vqa``, if there is one."""
    spec = importlib.util.find_spec("easy_vqa")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "data"
        if (folder / "train" / "questions.json").is_file():
            return folder
    return None


def find(data_dir: str | Path | None = None) -> Path:
    """Return the data set's folder: in the data directory, or else in the installed package."""
    try:
        return locate(NAME, data_dir)
    except MissingDataError:
        folder = package_folder()
        if folder is None:
            raise
        return folder


def read(split: str, folder: Path) -> Questions:
    """Read the questions of a split.

    Args:
        split: ``"train"`` or ``"test"``.
        folder: Folder with ``answers.txt`` and a sub-folder per split.
    """
    checks.choice("split", split, SPLITS)
    path = folder / split / "questions.json"
    known = set(read_answers(folder))
    texts, given, images = [], [], []
    for position, record in enumerate(entries(path, read_json(path))):
        kinds = [type(part) for part in record] if isinstance(record, list) else None
        if kinds != [str, str, int]:
            raise DataError(
                f"{path}: entry {position} must be [question, answer, number of the picture], got "
                f"{record!r}; {AGAIN}"
            )
        question, answer, image = record
        if answer not in known:
            raise DataError(
                f"{path}: entry {position} has the answer {answer!r}, which answers.txt does not "
                f"have; {AGAIN}"
            )
        texts.append(question)
        given.append((answer,))
        images.append(image)
    listed = sorted(set(images))
    place = {name: position for position, name in enumerate(listed)}
    yes_no = TYPES.index("yes/no")
    other = TYPES.index("other")
    return Questions(
        name=NAME,
        split=split,
        texts=tuple(texts),
        ids=torch.arange(len(texts)),
        pictures=tuple(f"{split}/images/{number}.png" for number in listed),
        picture=torch.tensor([place[number] for number in images]),
        answers=tuple(given),
        main=tuple(answer for (answer,) in given),
        types=torch.tensor([yes_no if a in ("yes", "no") else other for (a,) in given]),
    )


def read_answers(folder: Path) -> list[str]:
    """Read the published list of all possible answers."""
    path = folder / "answers.txt"
    try:
        found = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise MissingDataError(f"{path}: no such file; get the data set again") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    return [line.strip() for line in found if line.strip()]


def visual(
    folder: Path,
    names: tuple[str, ...],
    *,
    size: int = SIZE,
    fit: str = "pad",
    channels: int = 3,
    progress: bool = True,
) -> Tensor:
    """Read pictures, uint8 [M, channels, size, size]; 64 is their own size.

    Arguments as in :func:`gflowout.data.vqa.pictures.decode`.
    """
    paths = [folder / name for name in names]
    return decode(paths, size=size, fit=fit, channels=channels, progress=progress)


def pictures(folder: Path) -> int:
    """Count the pictures in a data set's folder."""
    return sum(1 for split in SPLITS for _ in (folder / split / "images").glob("*.png"))


SOURCE = Source(
    name=NAME,
    splits=tuple(SPLITS),
    evaluation="test",
    min_count=0,
    by_image=True,  # test pictures are new
    find=find,
    read=read,
    visual=visual,
    options=("size", "fit", "channels", "progress"),
    pictures=pictures,
)
load = SOURCE.load
