"""The published data sets of questions: VQA v2, VQA-RAD and easy-VQA."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.vqa.answers import MIN_COUNT, TYPES, normalise
from gflowout.data.vqa.sets import Questions, Source
from gflowout.data.vqa.visual import Regions, decode

_AGAIN = "the file is damaged or of another format: get it again"
_YES_NO, _NUMBER, _OTHER = range(3)  # positions in TYPES


class VQAv2(Source):
    """VQA v2: questions about COCO pictures, ten annotators each, with region features.

    Reads the published JSON files and one ``.npz`` of bottom-up features per picture, in the layout
    of the published MCAN code. The answers of the test splits are not published.
    """

    name = "vqa-v2"
    splits = ("train", "val", "test", "test-dev")
    evaluation = "val"
    min_count = MIN_COUNT
    by_image = True  # evaluation is on new pictures
    options = ("features_dir", "regions", "features", "cache_bytes")

    _PARTS = ("train2014", "val2014", "test2015", "test-dev2015")  # the splits in names of files

    def read(self, split: str, folder: Path) -> Questions:
        """Read a split from a folder with the JSON files, or with a sub-folder ``vqa`` of them."""
        part = self._PARTS[self.splits.index(checks.choice("split", split, self.splits))]
        path = self._file(folder, f"v2_OpenEnded_mscoco_{part}_questions.json")
        ids, texts, pictures = [], [], []
        for position, record in enumerate(_entries(path, _read_json(path), "questions")):
            ids.append(_value(path, position, record, "question_id", int))
            texts.append(_value(path, position, record, "question", str))
            pictures.append(_value(path, position, record, "image_id", int))
        if len(set(ids)) != len(ids):
            raise DataError(
                f"{path}: {len(ids) - len(set(ids))} question ids occur twice; {_AGAIN}"
            )
        part = part.replace("test-dev", "test")  # its pictures are those of the test split
        annotations: list[tuple[tuple[str, ...], str, int]] = [((), "", -1)] * len(ids)
        if not split.startswith("test"):
            answered = self._file(folder, f"v2_mscoco_{part}_annotations.json")
            annotations = _annotations(answered, path, dict(zip(ids, pictures, strict=True)))
        answers, main, types = zip(*annotations, strict=True)
        numbers, picture = _distinct(pictures)
        return Questions(
            name=self.name,
            split=split,
            texts=tuple(texts),
            ids=torch.tensor(ids),
            pictures=tuple(f"{part}/COCO_{part}_{number:012d}.jpg.npz" for number in numbers),
            picture=picture,
            answers=answers,
            main=main,
            types=torch.tensor(types),
        )

    def visual(
        self,
        folder: Path,
        names: tuple[str, ...],
        *,
        features_dir: str | Path | None = None,
        **options: Any,
    ) -> Regions:
        """Open the region features of pictures; files are read on demand.

        Args:
            folder: The data set's folder.
            names: Files, such as ``train2014/COCO_train2014_000000000009.jpg.npz``.
            features_dir: Folder with the sub-folders ``train2014`` and so on. Default: the data
                set's folder, or ``coco_extract`` in it or beside it.
            options: ``regions``, ``features`` and ``cache_bytes`` of :class:`Regions`.
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
                    f"{', '.join(map(str, bases[1:])) or 'any other place'}; unpack the features "
                    "there or name their folder with features_dir="
                )
            homes[part] = home
        paths = [homes[name.split("/")[0]] / name for name in names]
        return Regions(paths, **options)

    def pictures(self, folder: Path) -> int:
        """Count the files of region features in a data set's folder."""
        bases = (folder, folder / "coco_extract")
        files = (
            path
            for base in bases
            for part in self._PARTS[:3]
            for path in (base / part).glob("*.npz")
        )
        return sum(1 for _ in files)

    def _file(self, folder: Path, name: str) -> Path:
        inner = folder / "vqa" / name
        return inner if inner.is_file() else folder / name


class _PictureSource(Source):
    """A data set whose pictures are read, rather than features of them."""

    splits = ("train", "test")
    evaluation = "test"
    options = ("size", "fit", "channels", "progress")
    size: int

    def visual(self, folder: Path, names: tuple[str, ...], **options: Any) -> Tensor:
        """Read pictures, uint8 [M, channels, size, size]; options as in :func:`decode`.

        Proportions are kept by default: they carry meaning in a radiograph.
        """
        return decode([folder / name for name in names], **{"size": self.size, **options})


class VQARAD(_PictureSource):
    """VQA-RAD: questions of clinicians about radiology pictures, one answer each.

    Reads the release on OSF and the common copy with ``trainset.json`` and ``testset.json``.
    """

    name = "vqa-rad"
    by_image = False  # test questions are about the pictures of training
    size = 224

    _PUBLIC = "VQA_RAD Dataset Public.json"
    _FOLDERS = ("images", "VQA_RAD Image Folder")

    def read(self, split: str, folder: Path) -> Questions:
        """Read a split from ``trainset.json`` or ``testset.json``, or from the public release.

        Test questions of the release have a ``phrase_type`` that starts with "test".
        """
        checks.choice("split", split, self.splits)
        path = folder / f"{split}set.json"
        public = not path.is_file() and (folder / self._PUBLIC).is_file()
        if public:
            path = folder / self._PUBLIC
        texts, ids, answers, types, names = [], [], [], [], []
        closed_other = 0
        for position, record in enumerate(_entries(path, _read_json(path))):
            phrase = _value(path, position, record, "phrase_type", str).strip().lower()
            if public and phrase.startswith("test") != (split == "test"):
                continue
            texts.append(_value(path, position, record, "question", str).strip())
            number = _value(path, position, record, "qid", (int, str))  # text in some copies
            if isinstance(number, str) and not number.strip().isdecimal():
                raise DataError(
                    f"{path}: entry {position} has the 'qid' {number!r}, no number; {_AGAIN}"
                )
            ids.append(int(number))
            answers.append(str(_value(path, position, record, "answer", (str, int, float))).strip())
            names.append(_value(path, position, record, "image_name", str))
            closed = _value(path, position, record, "answer_type", str).strip().upper() == "CLOSED"
            types.append(question_type(answers[-1], closed=closed))
            closed_other += closed and types[-1] != _YES_NO
        files, picture = _distinct(names)
        home = self._picture_folder(folder).name
        return Questions(
            name=self.name,
            split=split,
            texts=tuple(texts),
            ids=torch.tensor(ids, dtype=torch.int64),
            pictures=tuple(f"{home}/{file}" for file in files),
            picture=picture,
            answers=tuple((answer,) for answer in answers),
            main=tuple(answers),
            types=torch.tensor(types, dtype=torch.int64),
            notes={"closed questions answered by neither yes nor no": closed_other},
        )

    def pictures(self, folder: Path) -> int:
        """Count the pictures in a data set's folder."""
        return sum(1 for _ in self._picture_folder(folder).glob("*.jpg"))

    def _picture_folder(self, folder: Path) -> Path:
        for name in self._FOLDERS:
            if (folder / name).is_dir():
                return folder / name
        raise MissingDataError(
            f"{folder}: has no sub-folder {' or '.join(map(repr, self._FOLDERS))}; put the "
            "pictures there"
        )


class EasyVQA(_PictureSource):
    """easy-VQA: generated questions about drawn shapes, one answer each.

    Reads the folder of the published repository, which the Python package ``easy_vqa`` ships as
    well. The package is never imported.
    """

    name = "easy-vqa"
    by_image = True  # test pictures are new
    size = 64  # their own

    def read(self, split: str, folder: Path) -> Questions:
        """Read a split from a folder with ``answers.txt`` and a sub-folder per split."""
        checks.choice("split", split, self.splits)
        path = folder / split / "questions.json"
        possible = set(self.read_answers(folder))
        texts, answers, images = [], [], []
        for position, record in enumerate(_entries(path, _read_json(path))):
            kinds = [type(part) for part in record] if isinstance(record, list) else None
            if kinds != [str, str, int]:
                raise DataError(
                    f"{path}: entry {position} must be [question, answer, number of the picture], "
                    f"got {record!r}; {_AGAIN}"
                )
            question, answer, image = record
            if answer not in possible:
                raise DataError(
                    f"{path}: entry {position} has the answer {answer!r}, which answers.txt does "
                    f"not have; {_AGAIN}"
                )
            texts.append(question)
            answers.append(answer)
            images.append(image)
        numbers, picture = _distinct(images)
        types = [_YES_NO if answer in ("yes", "no") else _OTHER for answer in answers]
        return Questions(
            name=self.name,
            split=split,
            texts=tuple(texts),
            ids=torch.arange(len(texts)),
            pictures=tuple(f"{split}/images/{number}.png" for number in numbers),
            picture=picture,
            answers=tuple((answer,) for answer in answers),
            main=tuple(answers),
            types=torch.tensor(types),
        )

    def read_answers(self, folder: Path) -> list[str]:
        """Read the published list of all possible answers."""
        path = folder / "answers.txt"
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError as error:
            raise MissingDataError(f"{path}: no such file; get the data set again") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
        return [line.strip() for line in lines if line.strip()]

    def pictures(self, folder: Path) -> int:
        """Count the pictures in a data set's folder."""
        return sum(1 for split in self.splits for _ in (folder / split / "images").glob("*.png"))


v2, rad, easy = VQAv2(), VQARAD(), EasyVQA()
SOURCES: dict[str, Source] = {source.name: source for source in (v2, rad, easy)}
"""The data sets of questions by name."""


def question_type(answer: str, *, closed: bool) -> int:
    """Return the type of a question of VQA-RAD, a position in ``TYPES``.

    A closed question with the answer yes or no is "yes/no"; an answer that is a number, in digits
    or as a word up to ten, makes "number"; anything else is "other". The answer "none" is "other":
    it says that nothing is seen.

    Examples:
        >>> [TYPES[question_type(a, closed=c)] for a, c in [("Yes", True), ("one", False)]]
        ['yes/no', 'number']
        >>> [TYPES[question_type(a, closed=c)] for a, c in [("left", True), ("5 cm", False)]]
        ['other', 'other']
    """
    plain = normalise(answer)
    if closed and plain in ("yes", "no"):
        return _YES_NO
    number = re.fullmatch(r"\d+(\.\d+)?", plain) and answer.strip().lower() != "none"
    return _NUMBER if number else _OTHER


def _annotations(
    path: Path, asked: Path, picture_of: dict[int, int]
) -> list[tuple[tuple[str, ...], str, int]]:
    """Answers, most frequent answer and type of each question, in the order of ``picture_of``."""
    annotations: dict[int, tuple[tuple[str, ...], str, int]] = {}
    for position, record in enumerate(_entries(path, _read_json(path, _shorten), "annotations")):
        number = _value(path, position, record, "question_id", int)
        if picture_of.get(number) != _value(path, position, record, "image_id", int):
            raise DataError(
                f"{path}: entry {position} is about question {number} and picture "
                f"{record['image_id']}, which {asked.name} does not have; get both files again"
            )
        kind = _value(path, position, record, "answer_type", str)
        answers = _value(path, position, record, "answers", list)
        if kind not in TYPES or not answers or not all(isinstance(text, str) for text in answers):
            raise DataError(
                f"{path}: entry {position} must have answers and one of the types "
                f"{', '.join(TYPES)}, got {kind!r} and {answers!r}; {_AGAIN}"
            )
        main = _value(path, position, record, "multiple_choice_answer", str)
        annotations[number] = (tuple(answers), main, TYPES.index(kind))
    missing = [number for number in picture_of if number not in annotations]
    if missing:
        raise DataError(
            f"{path}: has no answers to {len(missing)} questions of {asked.name}, the first is "
            f"{missing[0]}; get both files again"
        )
    return [annotations[number] for number in picture_of]


def _shorten(record: dict[str, Any]) -> Any:
    """Keep the text of an annotator's answer only: four million small dicts are many gigabytes."""
    text = record.get("answer")
    return sys.intern(text) if isinstance(text, str) and "question_id" not in record else record


def _distinct(values: list[Any]) -> tuple[list[Any], Tensor]:
    """The distinct values, sorted, and the position of each value among them, int64."""
    distinct = sorted(set(values))
    position = {value: index for index, value in enumerate(distinct)}
    return distinct, torch.tensor([position[value] for value in values], dtype=torch.int64)


def _read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Read a JSON file; ``hook`` replaces each object as it is read."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            return json.load(stream, object_hook=hook)
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{path}: no such file; it belongs to the data set: get it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check its permissions") from error


def _entries(path: Path, content: Any, key: str | None = None) -> list[Any]:
    """The list in a file's content, under ``key`` if there is one."""
    if key is not None:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"{path}: has no {key!r}; {_AGAIN}")
        content = content[key]
    if not isinstance(content, list) or not content:
        what = "entries" if key is None else repr(key)
        raise DataError(f"{path}: {what} must be a list that is not empty; {_AGAIN}")
    return content


def _value(path: Path, position: int, record: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """One value of an entry, of the type that it must have."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise DataError(
            f"{path}: entry {position} must have {key!r} of type {names}, got {value!r}; {_AGAIN}"
        )
    return value
