"""VQA-RAD, easy-VQA and what reads their pictures, on tiny files in the published formats."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from vqa_files import EASY, RAD, write_easy, write_rad

from gflowout.data import store
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import entry
from gflowout.data.vqa import TYPES, easy, load, rad
from gflowout.data.vqa.datasets import question_type
from gflowout.data.vqa.inputs import decode


def change(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("public", [False, True])
def test_rad_in_both_layouts(tmp_path: Path, public: bool) -> None:
    folder = write_rad(tmp_path, public=public)
    for split, rows in (("train", RAD[:5]), ("test", RAD[5:])):
        found = rad.read(split, folder)
        assert found.questions == tuple(row[1] for row in rows)
        assert found.answers == tuple((str(row[2]).strip(),) for row in rows)
        names = [Path(found.picture_names[p]).name for p in found.image_index.tolist()]
        assert names == [row[0] for row in rows]
    assert found.question_ids.tolist() == [5, 6]


def test_rad_numbers_written_as_text(tmp_path: Path) -> None:
    folder = write_rad(tmp_path)
    change(folder / "testset.json", lambda content: content[1].update(qid="77"))
    assert rad.read("test", folder).question_ids.tolist() == [5, 77]


def test_rad_types(tmp_path: Path) -> None:
    found = rad.read("train", write_rad(tmp_path))
    kinds = [TYPES[kind] for kind in found.types.tolist()]
    assert kinds == ["yes/no", "yes/no", "number", "other", "other"]
    assert found.notes == {"closed questions answered by neither yes nor no": 1}


@pytest.mark.parametrize(
    ("answer", "closed", "kind"),
    [
        ("yes", True, "yes/no"),
        ("Yes", False, "other"),  # an open question that happens to be answered so
        ("left", True, "other"),
        ("one", True, "number"),
        ("one", False, "number"),
        ("12", False, "number"),
        ("3.4", False, "number"),
        ("3.4 cm", False, "other"),
        ("5 cm", False, "other"),
        ("None", False, "other"),
        ("T2", False, "other"),
        ("just one", True, "other"),
    ],
)
def test_rad_type_by_answer(answer: str, closed: bool, kind: str) -> None:
    assert TYPES[question_type(answer, closed=closed)] == kind


def test_rad_as_a_set(tmp_path: Path) -> None:
    write_rad(tmp_path / "vqa_rad")
    data = rad.load("test", tmp_path, size=20)
    assert data.scores([0]).sum() == 1
    assert data.unanswerable == 1  # "pons" is no answer of training
    visual, _, _ = data.batch([0, 1])
    assert visual.dtype == torch.float32
    grey = data.visual[data.image_index[0]]
    assert grey.float().amax() == pytest.approx(128, abs=1)


def test_pictures_keep_their_proportions_in_a_black_border(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20), (10, 20, 30)).save(tmp_path / "wide.png")
    Image.new("RGB", (1, 90), (10, 20, 30)).save(tmp_path / "line.png")
    wide, line = decode([tmp_path / "wide.png", tmp_path / "line.png"], size=20)
    expected = torch.zeros(3, 20, 20, dtype=torch.uint8)
    expected[:, 5:15] = torch.tensor([10, 20, 30], dtype=torch.uint8)[:, None, None]
    assert torch.equal(wide, expected)
    assert (line.sum(0) > 0).sum() == 20  # one column is left of the line
    (full,) = decode([tmp_path / "wide.png"], size=20, fit="squash")
    assert torch.equal(full, expected[:, 10:11, :1].expand(3, 20, 20))


def test_pictures_of_their_own_size_stay_as_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (found,) = decode([tmp_path / "a.png"], size=8)
    assert torch.equal(found, torch.from_numpy(pixels).permute(2, 0, 1))
    (grey,) = decode([tmp_path / "a.png"], size=8, channels=1)
    weights = torch.tensor([0.299, 0.587, 0.114])
    expected = (torch.from_numpy(pixels).float() * weights).sum(-1)
    assert (grey[0].float() - expected).abs().max() <= 1


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.9])
def test_cut_off_pictures(tmp_path: Path, name: str, keep: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / name
    Image.fromarray(pixels).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(DataError, match="cannot be read as a picture") as caught:
        decode([path], size=8)
    assert str(caught.value).startswith(str(path))


def test_missing_pictures_and_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no such picture"):
        decode([tmp_path / "a.png"], size=8)
    with pytest.raises(ValueError, match="fit must be one of"):
        decode([], size=8, fit="crop")
    with pytest.raises(ValueError, match="channels must be 1 or 3"):
        decode([], size=8, channels=4)
    with pytest.raises(ValueError, match="size must be"):
        decode([], size=0)


def test_many_pictures_without_a_terminal_print_nothing(tmp_path: Path, capsys) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    assert len(decode([tmp_path / "a.png"] * 250, size=2)) == 250
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c[2].pop("answer"), "entry 2 must have 'answer'"),
        (lambda c: c[0].pop("image_name"), "entry 0 must have 'image_name'"),
        (lambda c: c[0].pop("answer_type"), "entry 0 must have 'answer_type'"),
        (lambda c: c[0].update(question=None), "got None"),
        (lambda c: c[0].update(qid="x"), "the 'qid' 'x', no number"),
        (lambda c: c.clear(), "not empty"),
    ],
)
def test_broken_rad(tmp_path: Path, edit, message: str) -> None:
    folder = write_rad(tmp_path)
    change(folder / "trainset.json", edit)
    with pytest.raises(DataError, match=message) as caught:
        rad.read("train", folder)
    assert str(caught.value).startswith(str(folder / "trainset.json"))


def test_rad_files_that_are_not_there(tmp_path: Path) -> None:
    folder = write_rad(tmp_path / "vqa_rad")
    (folder / "images" / "synpic2.jpg").unlink()
    with pytest.raises(MissingDataError, match=r"synpic2\.jpg"):
        load("vqa-rad", tmp_path, size=8)
    (folder / "images").rename(folder / "pictures")
    with pytest.raises(MissingDataError, match="'images' or 'VQA_RAD Image Folder'"):
        rad.read("train", folder)
    (folder / "testset.json").unlink()
    with pytest.raises(MissingDataError, match=r"testset\.json"):
        rad.read("test", folder)


def test_easy_questions_meet_their_pictures(tmp_path: Path) -> None:
    write_easy(tmp_path / "easy_vqa")
    split = load("easy-vqa", tmp_path, valid=0)
    assert split.train.questions == tuple(row[0] for row in EASY["train"])
    red = (split.train.batch(slice(None))[0][:, 0, 0, 0] * 255).round()
    assert red.tolist() == [1, 0]
    blue = (split.test.batch([0])[0][:, 2, 0, 0] * 255).round()
    assert blue.tolist() == [9]  # picture 0 of the test split, not of training
    assert [TYPES[t] for t in split.train.types.tolist()] == ["other", "yes/no"]
    assert split.test.unanswerable == 1  # "yes" is no answer of training
    assert len(split.valid) == 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c[1].pop(), "entry 1 must be"),
        (lambda c: c[0].__setitem__(2, "0"), "entry 0 must be"),
        (lambda c: c[0].__setitem__(1, "mauve"), "'mauve', which answers.txt"),
        (lambda c: c.__setitem__(0, {}), "entry 0 must be"),
    ],
)
def test_broken_easy(tmp_path: Path, edit, message: str) -> None:
    folder = write_easy(tmp_path)
    change(folder / "train" / "questions.json", edit)
    with pytest.raises(DataError, match=message) as caught:
        easy.read("train", folder)
    assert str(caught.value).startswith(str(folder / "train" / "questions.json"))


def test_easy_files_that_are_not_there(tmp_path: Path) -> None:
    folder = write_easy(tmp_path)
    (folder / "train" / "images" / "1.png").unlink()
    with pytest.raises(MissingDataError, match=r"1\.png"):
        easy.visual(folder, easy.read("train", folder).picture_names)
    (folder / "answers.txt").unlink()
    with pytest.raises(MissingDataError, match=r"answers\.txt"):
        easy.read("train", folder)


def test_easy_without_data_or_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert store.package_folder(entry("easy-vqa")) is None
    with pytest.raises(MissingDataError, match="pip install easy-vqa"):
        easy.load("train", tmp_path)


def test_easy_from_the_installed_package_without_importing_it(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "site" / "easy_vqa"
    write_easy(package / "data")
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.delitem(sys.modules, "easy_vqa", raising=False)  # another test may have imported it
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "empty").mkdir()
    assert store.package_folder(entry("easy-vqa")) == package / "data"
    assert len(easy.load("train", tmp_path / "empty")) == 2


def test_features_of_ones_own_instead_of_pictures(tmp_path: Path) -> None:
    write_rad(tmp_path / "vqa_rad")

    def visual(place: Path, names: tuple[str, ...]) -> torch.Tensor:
        assert all((place / name).is_file() for name in names)
        return torch.arange(len(names)).float().reshape(-1, 1, 1)

    split = load("vqa-rad", tmp_path, valid=0.0, visual=visual)
    shown, *_ = split.train.batch(slice(None))
    expected = [split.train.picture_names[row] for row in split.train.image_index]
    assert [split.train.picture_names[int(place)] for place in shown.flatten()] == expected
    with pytest.raises(TypeError, match="visual leaves nothing to the options size"):
        load("vqa-rad", tmp_path, size=32, visual=visual)
