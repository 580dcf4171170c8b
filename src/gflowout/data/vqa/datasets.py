"""The published data sets of questions: VQA v2, VQA-RAD and easy-VQA."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gflowout.core import checks
from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError, reading
from gflowout.data.vqa.answers import MIN_COUNT, TYPES, normalise
from gflowout.data.vqa.inputs import FEATURES, Regions, decode, read_regions, tracked
from gflowout.data.vqa.sets import Questions, Row, Source
from gflowout.data.vqa.shards import INDEX, PackedRegions, pack

PACKED = "packed"
"""Sub-folder of VQA v2 for region features in shards."""
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
    files = tuple(
        f"{base}{part}/*.npz"
        for base in ("", "coco_extract/")
        for part in ("train2014", "val2014", "test2015")
    )
    _PARTS = ("train2014", "val2014", "test2015", "test-dev2015")  # the splits in names of files

    def read(self, split: str, folder: Path) -> Questions:
        """Read a split from a folder with the JSON files, or with a sub-folder ``vqa`` of them."""
        part = self._PARTS[self.splits.index(checks.choice("split", split, self.splits))]
        path = self._file(folder, f"v2_OpenEnded_mscoco_{part}_questions.json")
        asked = [
            (ask.get("question", str), ask.get("question_id", int), ask.get("image_id", int))
            for ask in _records(path, "questions")
        ]
        picture_of = {number: picture for _, number, picture in asked}
        if repeated := len(asked) - len(picture_of):
            raise DataError(f"{path}: {repeated} question ids occur twice; {_AGAIN}")
        part = part.replace("test-dev", "test")  # its pictures are those of the test split
        annotations: list[tuple[tuple[str, ...], str, int]] = [((), "", -1)] * len(asked)
        if not split.startswith("test"):
            answered = self._file(folder, f"v2_mscoco_{part}_annotations.json")
            annotations = _annotations(answered, path, picture_of)
        rows = [(*ask, *answer) for ask, answer in zip(asked, annotations, strict=True)]
        return self.collect(split, f"{part}/COCO_{part}_{{:012d}}.jpg.npz", rows)

    def visual(
        self,
        folder: Path,
        names: tuple[str, ...],
        *,
        features_dir: str | Path | None = None,
        **options: Any,
    ) -> Regions:
        """Open the region features of pictures, in files that are read on demand.

        ``features_dir`` has shards, see :func:`gflowout.data.vqa.pack`, or the sub-folders
        ``train2014`` and so on. Default: ``packed`` in the data set's folder if it has shards, else
        the folder itself, or ``coco_extract`` in it or beside it. ``options`` are those of
        :class:`Regions`, but for ``cache_bytes`` with shards, which need no cache.
        """
        shards = folder / PACKED if features_dir is None else Path(features_dir).expanduser()
        if (shards / INDEX).is_file():
            options.pop("cache_bytes", None)
            return PackedRegions(shards, names, **options)
        return Regions(self._paths(folder, names, features_dir), **options)

    def _paths(
        self, folder: Path, names: Sequence[str], features_dir: str | Path | None
    ) -> list[Path]:
        """Files of region features, one per picture."""
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
        return [homes[name.split("/")[0]] / name for name in names]

    def pack(
        self,
        data_dir: str | Path | None = None,
        *,
        features_dir: str | Path | None = None,
        features: int = FEATURES,
        out: str | Path | None = None,
        progress: bool = True,
    ) -> Path:
        """Write the region features of training and evaluation into shards; returns their folder.

        Args:
            data_dir: Directory of all data sets.
            features_dir: Folder of the files, one per picture; by default as for :meth:`visual`.
            features: Numbers per region.
            out: Folder to write; by default the one in which :meth:`visual` looks first.
            progress: Show a bar on a terminal.
        """
        folder = store.find(self.name, data_dir)
        parts = [self.read(split, folder) for split in ("train", self.evaluation)]
        names = list(dict.fromkeys(name for part in parts for name in part.picture_names))
        paths = self._paths(folder, names, features_dir)
        rows = (read_regions(path, features) for path in tracked(paths, progress))
        return pack(names, rows, folder / PACKED if out is None else out)

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
    files = ("*.jpg",)  # in the folder of pictures
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
        rows: list[Row] = []
        closed_other = 0
        for record in _records(path):
            phrase = record.get("phrase_type", str).strip().lower()
            if public and phrase.startswith("test") != (split == "test"):
                continue
            text = record.get("question", str).strip()
            number = str(record.get("qid", int, str)).strip()  # text in some copies
            if not number.isdecimal():
                raise record.error(f"has the 'qid' {number!r}, no number")
            answer = str(record.get("answer", str, int, float)).strip()
            picture = record.get("image_name", str)
            closed = record.get("answer_type", str).strip().upper() == "CLOSED"
            kind = question_type(answer, closed=closed)
            closed_other += closed and kind != _YES_NO
            rows.append((text, int(number), picture, (answer,), answer, kind))
        notes = {"closed questions answered by neither yes nor no": closed_other}
        return self.collect(split, f"{self._picture_folder(folder).name}/{{}}", rows, notes)

    def pictures(self, folder: Path) -> int:
        """Count the pictures in a data set's folder."""
        return super().pictures(self._picture_folder(folder))

    def _picture_folder(self, folder: Path) -> Path:
        for name in self._FOLDERS:
            if (folder / name).is_dir():
                return folder / name
        names = " or ".join(map(repr, self._FOLDERS))
        raise MissingDataError(f"{folder}: has no sub-folder {names}; put the pictures there")


class EasyVQA(_PictureSource):
    """easy-VQA: generated questions about drawn shapes, one answer each.

    Reads the folder of the published repository, which the Python package ``easy_vqa`` ships as
    well. The package is never imported.
    """

    name = "easy-vqa"
    by_image = True  # test pictures are new
    size = 64  # their own
    files = ("train/images/*.png", "test/images/*.png")

    def read(self, split: str, folder: Path) -> Questions:
        """Read a split from a folder with ``answers.txt`` and a sub-folder per split."""
        checks.choice("split", split, self.splits)
        path = folder / split / "questions.json"
        possible = set(self.read_answers(folder))
        rows: list[Row] = []
        for record in _records(path):
            content = record.content
            kinds = [type(part) for part in content] if isinstance(content, list) else None
            if kinds != [str, str, int]:
                raise record.error(f"must be [question, answer, picture number], got {content!r}")
            text, answer, picture = content
            if answer not in possible:
                raise record.error(f"has the answer {answer!r}, which answers.txt does not have")
            kind = _YES_NO if answer in ("yes", "no") else _OTHER
            rows.append((text, len(rows), picture, (answer,), answer, kind))
        return self.collect(split, f"{split}/images/{{}}.png", rows)

    def read_answers(self, folder: Path) -> list[str]:
        """Read the published list of all possible answers."""
        path = folder / "answers.txt"
        with reading(path, errors=ValueError):
            lines = path.read_text(encoding="utf-8").split("\n")
        return [line.strip() for line in lines if line.strip()]


v2, rad, easy = VQAv2(), VQARAD(), EasyVQA()
SOURCES: dict[str, Source] = {source.name: source for source in (v2, rad, easy)}
"""The data sets of questions by name."""


def question_type(answer: str, *, closed: bool) -> int:
    """Return the type of a question of VQA-RAD, a position in ``TYPES``.

    A closed question with the answer yes or no is "yes/no"; an answer that is a number, in digits
    or as a word up to ten, makes "number"; anything else is "other". The answer "none" is "other":
    it says that nothing is seen.
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
    for record in _records(path, "annotations", _shorten):
        number, picture = record.get("question_id", int), record.get("image_id", int)
        if picture_of.get(number) != picture:
            about = f"question {number} and picture {picture}"
            raise record.error(f"is about {about}, which {asked.name} does not have")
        kind, answers = record.get("answer_type", str), record.get("answers", list)
        if kind not in TYPES or not answers or not all(isinstance(text, str) for text in answers):
            expected = f"answers and one of the types {', '.join(TYPES)}"
            raise record.error(f"must have {expected}, got {kind!r} and {answers!r}")
        main = record.get("multiple_choice_answer", str)
        annotations[number] = (tuple(answers), main, TYPES.index(kind))
    missing = [number for number in picture_of if number not in annotations]
    if missing:
        questions = f"{len(missing)} questions of {asked.name}, the first is {missing[0]}"
        raise DataError(f"{path}: has no answers to {questions}; get both files again")
    return [annotations[number] for number in picture_of]


def _shorten(record: dict[str, Any]) -> Any:
    """Keep the text of an annotator's answer only: four million small dicts are many gigabytes."""
    text = record.get("answer")
    return sys.intern(text) if isinstance(text, str) and "question_id" not in record else record


def _records(
    path: Path, key: str | None = None, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[_Record]:
    """The entries of a JSON file, under ``key`` if given; ``hook`` replaces each object."""
    with (
        reading(path, "cannot be read as JSON", (ValueError, RecursionError)),
        path.open(encoding="utf-8-sig") as stream,
    ):
        content = json.load(stream, object_hook=hook)
    if key is not None:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"{path}: has no {key!r}; {_AGAIN}")
        content = content[key]
    if not isinstance(content, list) or not content:
        what = "entries" if key is None else repr(key)
        raise DataError(f"{path}: {what} must be a list that is not empty; {_AGAIN}")
    return (_Record(path, position, entry) for position, entry in enumerate(content))


@dataclass(frozen=True)
class _Record:
    """One entry of a JSON file."""

    path: Path
    position: int
    content: Any

    def get(self, key: str, *kinds: type) -> Any:
        """The value under ``key``, which must be of one of these types."""
        value = self.content.get(key) if isinstance(self.content, dict) else None
        if not isinstance(value, kinds) or isinstance(value, bool):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise self.error(f"must have {key!r} of type {names}, got {value!r}")
        return value

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}: entry {self.position} {problem}; {_AGAIN}")
