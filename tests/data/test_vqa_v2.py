import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from vqa_files import FEATURES, V2, regions, write_v2

from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.vqa import TYPES, Answers, Regions, Tokenizer, load, summarise, v2

QUESTIONS = "v2_OpenEnded_mscoco_train2014_questions.json"
ANNOTATIONS = "v2_mscoco_train2014_annotations.json"
PICTURE = "train2014/COCO_train2014_000000000009.jpg.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_v2(tmp_path / "vqa_v2")


def change(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_questions_meet_their_answers_and_pictures(folder: Path) -> None:
    # Annotations are written in the opposite order, so only ids can bring them together.
    data = v2.load("train", folder.parent, features=FEATURES, min_count=0)
    assert len(data) == 4
    for row, (number, image, text, answers, _, kind) in enumerate(V2["train"]):
        assert data.question_ids[row] == number
        assert data.questions[row] == text
        assert list(data.answers[row]) == answers
        assert TYPES[data.types[row]] == kind
        visual, _, _ = data.batch([row])
        own = torch.from_numpy(regions(image))
        assert torch.equal(visual[0, : len(own)], own)
        assert not visual[0, len(own) :].any()
    assert visual.shape == (1, 100, FEATURES)


def test_scores_are_of_the_ten_annotators(folder: Path) -> None:
    answers = Answers(("no", "yes", "2", "3"))
    data = v2.load("train", folder, features=FEATURES, answers=answers)
    expected = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 2 / 3], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert torch.allclose(data.batch(slice(None))[2], expected)  # eight say 2, four in words
    assert torch.allclose(data.scores([1, 0]), expected[[1, 0]])
    assert data.unanswerable == 1
    assert data.counts.missed.tolist() == [0, 0, 10, 0]
    published = v2.load("train", folder, features=FEATURES, answers=answers, scoring="accuracy")
    assert torch.allclose(published.scores([0])[0], torch.tensor([0.9, 1, 0, 0]))
    assert torch.allclose(data.accuracy(torch.tensor([0, 3]), [0, 1]), torch.tensor([0.9, 0.6]))
    with pytest.raises(ValueError, match="one class per question"):
        data.accuracy(torch.tensor([0]))


def test_vocabularies_come_from_training_alone(folder: Path) -> None:
    data = v2.load("val", folder, features=FEATURES, min_count=0)
    assert data.classes == 4  # yes, no, 2, racket: most frequent answers of training
    assert data.tokens[0, :3].tolist() == [2, 3, 1]  # "blue" is new
    assert data.unanswerable == 1


def test_min_count_is_a_strict_bound_as_published(folder: Path) -> None:
    records = [{"question_id": i, "image_id": 9, "question": "Is it?"} for i in range(17)]
    change(folder / QUESTIONS, lambda content: content.update(questions=records))
    path = folder / ANNOTATIONS
    example = json.loads(path.read_text())["annotations"][0]
    given = [
        example | {"question_id": i, "image_id": 9, "multiple_choice_answer": "ab"[i >= 8]}
        for i in range(17)
    ]
    change(path, lambda content: content.update(annotations=given))
    data = v2.read("train", folder)
    assert data.fitted_answers(v2.min_count).names == ("b",)  # nine times b, eight times a


@pytest.mark.parametrize("split", ["test", "test-dev"])
def test_splits_without_answers(folder: Path, split: str) -> None:
    data = v2.load(split, folder, features=FEATURES, min_count=0)
    assert data.answers == ((),)
    assert data.types.tolist() == [-1]
    visual, tokens, scores = data.batch([0])
    assert torch.equal(visual[0, :2], torch.from_numpy(regions(61)))
    assert tokens[0, :3].tolist() == [2, 3, 4]
    assert not scores.any()


def test_features_beside_the_questions_or_elsewhere_in_either_orientation(tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"  # the published layout
    write_v2(datasets / "vqa_v2", features=datasets / "coco_extract", transposed=False)
    beside = v2.load("train", datasets, features=FEATURES, min_count=0)
    other = tmp_path / "elsewhere"
    (datasets / "coco_extract").rename(other)
    with pytest.raises(MissingDataError, match="features_dir="):
        v2.load("train", datasets, features=FEATURES, min_count=0)
    named = v2.load("train", datasets, features=FEATURES, min_count=0, features_dir=other)
    assert torch.equal(named.batch([2])[0][0, :2], regions_of(25))
    assert [path.name for path in beside.visual.paths] == [p.name for p in named.visual.paths]


def regions_of(image: int) -> torch.Tensor:
    return torch.from_numpy(regions(image))


def test_json_files_in_a_subfolder(folder: Path) -> None:
    (folder / "vqa").mkdir()
    for path in folder.glob("*.json"):
        path.rename(folder / "vqa" / path.name)
    assert len(v2.read("train", folder)) == 4


def test_more_regions_than_asked_for_are_cut(folder: Path) -> None:
    data = v2.load("train", folder, features=FEATURES, regions=1, min_count=0)
    assert torch.equal(data.batch([2])[0][0], regions_of(25)[:1])


def test_square_features_are_taken_as_published(tmp_path: Path) -> None:
    x = np.arange(FEATURES**2, dtype=np.float32).reshape(FEATURES, FEATURES)
    np.savez(tmp_path / "a.npz", x=x)
    store = Regions([tmp_path / "a.npz"], features=FEATURES)
    assert torch.equal(store[torch.tensor([0])][0, :FEATURES], torch.from_numpy(x.T))


def test_files_are_read_once_while_the_cache_holds_them(folder: Path) -> None:
    paths = [folder / PICTURE, folder / PICTURE.replace("09.", "25.")]
    size = regions(9).nbytes
    assert regions(25).nbytes == size
    both = torch.tensor([0, 1])
    store = Regions(paths, features=FEATURES, cache_bytes=2 * size)
    first = store[both]
    one = Regions(paths, features=FEATURES, cache_bytes=size)
    one[both]
    none = Regions(paths, features=FEATURES, cache_bytes=0)
    assert torch.equal(none[both], first)
    for path in paths:
        path.unlink()
    assert torch.equal(store[both], first)
    assert torch.equal(one[both[1:]], first[1:])
    with pytest.raises(MissingDataError, match="000009"):
        one[both]
    with pytest.raises(MissingDataError, match="000009"):
        none[both]


def test_what_was_read_does_not_change_with_a_batch(folder: Path) -> None:
    data = v2.load("train", folder, features=FEATURES, min_count=0)
    data.batch([0])[0].zero_()
    assert data.batch([0])[0].any()


def test_sets_survive_pickling_for_workers(folder: Path) -> None:
    data = v2.load("train", folder, features=FEATURES, min_count=0)
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.batch([0, 3])[0], data.batch([0, 3])[0])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros((FEATURES, 2))}, "no array 'x'"),
        ({"x": np.zeros((5, 2))}, r"got float64 \[5, 2\]"),
        ({"x": np.zeros(FEATURES)}, r"got float64 \[6\]"),
        ({"x": np.zeros((FEATURES, 2), dtype="U1")}, "'x' must be numbers"),
        ({"x": np.full((FEATURES, 2), np.nan)}, "not finite"),
        ({"x": np.zeros((FEATURES, 0))}, "empty"),
        ({"x": np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_broken_features(folder: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(folder / PICTURE, **arrays)
    data = v2.load("train", folder, features=FEATURES, min_count=0)
    with pytest.raises(DataError, match=message) as caught:
        data.batch([0])
    assert str(caught.value).startswith(str(folder / PICTURE))


def test_pickles_are_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Mine:
        def __reduce__(self):
            return (Path.touch, (mark,))

    for path in (folder / PICTURE, folder / "plain.npz"):
        np.savez(path, x=np.array([Mine()], dtype=object))
    (folder / PICTURE).write_bytes(pickle.dumps(Mine()))
    for path in (folder / PICTURE, folder / "plain.npz"):
        with pytest.raises(DataError):
            Regions([path], features=FEATURES)[torch.tensor([0])]
    assert not mark.exists()


@pytest.mark.parametrize("keep", [0, 3, 100, -20])
def test_cut_off_features(folder: Path, keep: int) -> None:
    path = folder / PICTURE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="get the file again"):
        v2.load("train", folder, features=FEATURES, min_count=0).batch([0])


def test_missing_features_are_named(folder: Path) -> None:
    (folder / PICTURE).unlink()
    data = v2.load("train", folder, features=FEATURES, min_count=0)
    data.batch([2])
    with pytest.raises(MissingDataError, match="no such file of region features") as caught:
        data.batch([0])
    assert str(caught.value).startswith(str(folder / PICTURE))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (QUESTIONS, lambda c: c.pop("questions"), "has no 'questions'"),
        (QUESTIONS, lambda c: c.update(questions=[]), "not empty"),
        (QUESTIONS, lambda c: c["questions"][1].pop("image_id"), "entry 1 must have 'image_id'"),
        (QUESTIONS, lambda c: c["questions"][1].update(question=3), "got 3"),
        (QUESTIONS, lambda c: c["questions"].append(c["questions"][0]), "1 question ids"),
        (QUESTIONS, lambda c: c["questions"].__setitem__(0, "?"), "entry 0"),
        (ANNOTATIONS, lambda c: c.pop("annotations"), "has no 'annotations'"),
        (ANNOTATIONS, lambda c: c["annotations"].pop(), "no answers to 1 questions.* 9000"),
        (ANNOTATIONS, lambda c: c["annotations"][0].update(question_id=7), "question 7"),
        (ANNOTATIONS, lambda c: c["annotations"][0].update(image_id=7), "picture 7"),
        (ANNOTATIONS, lambda c: c["annotations"][0].update(answer_type="colour"), "'colour'"),
        (ANNOTATIONS, lambda c: c["annotations"][0].update(answers=[]), "must have answers"),
        (ANNOTATIONS, lambda c: c["annotations"][0]["answers"][3].pop("answer"), "have answers"),
        (ANNOTATIONS, lambda c: c["annotations"][0].pop("multiple_choice_answer"), "entry 0"),
    ],
)
def test_broken_json(folder: Path, name: str, edit, message: str) -> None:
    change(folder / name, edit)
    with pytest.raises(DataError, match=message) as caught:
        v2.read("train", folder)
    assert str(caught.value).startswith(str(folder / name))
    assert "again" in str(caught.value)


@pytest.mark.parametrize("name", [QUESTIONS, ANNOTATIONS])
def test_cut_off_and_missing_json(folder: Path, name: str) -> None:
    path = folder / name
    path.write_text(path.read_text()[:-9])
    with pytest.raises(DataError, match="cannot be read as JSON") as caught:
        v2.read("train", folder)
    assert str(caught.value).startswith(str(path))
    path.unlink()
    with pytest.raises(MissingDataError, match=name):
        v2.read("train", folder)


def test_names_are_checked_at_the_door(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of"):
        v2.load("valid", folder)
    with pytest.raises(TypeError, match=r"takes the options features_dir.*got 'size'"):
        v2.load("train", folder, size=3)
    with pytest.raises(ValueError, match="lower min_count"):
        v2.load("train", folder, features=FEATURES)  # nothing occurs more than eight times
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match="vqa-v2"):
        v2.load("train", tmp_path / "empty")


def test_pipeline(folder: Path) -> None:
    split = load("vqa-v2", folder, valid=0.5, min_count=0, features=FEATURES)
    assert len(split.train) == len(split.valid) == 2
    assert set(split.train.image_index.tolist()).isdisjoint(split.valid.image_index.tolist())
    assert split.test.split == "val"
    assert split.tokenizer == Tokenizer.fit(split.train.questions)
    assert split.train.visual is split.test.visual
    assert torch.equal(split.test.batch([0])[0][0, :3], regions_of(42))


def test_summary(folder: Path) -> None:
    found = summarise("vqa-v2", folder)
    assert found["pictures"] == 4
    assert found["train questions"] == 4
    assert found["train questions, yes/no"] == 2
    assert found["val questions, other"] == 1
    assert found["pictures of both"] == 0
