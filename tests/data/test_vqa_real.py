"""The pipeline on real data: all of VQA-RAD and easy-VQA."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.functional import binary_cross_entropy_with_logits

from gflowout.backbones import MCAN, ConvGrid, ImageMCAN
from gflowout.data import store
from gflowout.data.store import entry
from gflowout.data.vqa import (
    TYPES,
    Answers,
    Tokenizer,
    VQASplit,
    accuracy,
    easy,
    load,
    normalise,
    rad,
    summarise,
)
from gflowout.data.vqa.inputs import words
from gflowout.data.vqa.sets import encode, hold_out

COLOURS = {
    "black": (0, 0, 0),
    "gray": (128, 128, 128),
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "green": (0, 255, 0),
    "yellow": (255, 255, 0),
    "teal": (0, 128, 128),
    "brown": (165, 42, 42),
}


@pytest.fixture(scope="module")
def rad_split(real_data: Callable[[str], Path]) -> VQASplit:
    return load("vqa-rad", real_data("vqa-rad"), size=32, fit="squash")


@pytest.fixture(scope="module")
def easy_split() -> VQASplit:
    folder = store.package_folder(entry("easy-vqa"))
    if folder is None:
        pytest.skip("real data: the package easy-vqa is not installed")
    return load("easy-vqa", folder.parent)


def test_rad_is_complete(real_data: Callable[[str], Path]) -> None:
    found = summarise("vqa-rad", real_data("vqa-rad"))
    assert found["pictures"] == 315
    assert found["train questions"] == 3064
    assert found["test questions"] == 451
    assert [found[f"train questions, {kind}"] for kind in TYPES] == [1713, 22, 1329]
    assert [found[f"test questions, {kind}"] for kind in TYPES] == [251, 3, 197]
    assert found["pictures of both"] == found["pictures of test questions"] == 203
    assert found["train: closed questions answered by neither yes nor no"] == 110
    assert found["test: closed questions answered by neither yes nor no"] == 21


def test_rad_questions_meet_their_pictures(
    rad_split: VQASplit, real_data: Callable[[str], Path]
) -> None:
    folder = real_data("vqa-rad")
    for data, name in ((rad_split.train, "trainset.json"), (rad_split.test, "testset.json")):
        records = {record["qid"]: record for record in json.loads((folder / name).read_text())}
        for row in range(0, len(data), 97):
            record = records[int(data.question_ids[row])]
            assert data.questions[row] == record["question"].strip()
            with Image.open(folder / "images" / record["image_name"]) as picture:
                small = picture.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
            pixels = torch.tensor(list(small.tobytes())).reshape(32, 32, 3).permute(2, 0, 1)
            visual, tokens, scores = data.batch([row])
            assert torch.equal((visual[0] * 255).round().long(), pixels)
            assert tokens.tolist() == rad_split.tokenizer.encode([record["question"]]).tolist()
            own = normalise(str(record["answer"]))
            named = {rad_split.answers.names[i] for i in scores[0].nonzero().flatten().tolist()}
            assert named == ({own} if own in rad_split.answers.index else set())


def test_rad_vocabularies_are_of_training_alone(rad_split: VQASplit) -> None:
    train = rad_split.train
    assert rad_split.tokenizer == Tokenizer.fit(train.questions)
    assert rad_split.answers == Answers.fit(answer for (answer,) in train.answers)
    assert train.unanswerable == 0
    for part in (rad_split.valid, rad_split.test):
        known = {normalise(answer) for (answer,) in train.answers}
        unknown = [normalise(answer) not in known for (answer,) in part.answers]
        assert part.unanswerable == sum(unknown) > 0


def test_rad_validation_by_picture(real_data: Callable[[str], Path]) -> None:
    questions = rad.read("train", real_data("vqa-rad"))
    first, again, other = (hold_out(questions, 0.1, by_image=True, seed=s) for s in (0, 0, 1))
    for train, valid in (first, other):
        assert sorted([*train.tolist(), *valid.tolist()]) == list(range(3064))
        pictures = [set(questions.image_index[rows].tolist()) for rows in (train, valid)]
        assert pictures[0].isdisjoint(pictures[1])
        assert len(pictures[1]) == 31
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1][:9], other[1][:9])


def test_rad_validation_by_question(rad_split: VQASplit) -> None:
    ids = [set(part.question_ids.tolist()) for part in (rad_split.train, rad_split.valid)]
    assert ids[0].isdisjoint(ids[1])
    assert len(ids[0] | ids[1]) == 3064
    assert (rad_split.train.split, rad_split.valid.split) == ("train", "valid")
    seen = [
        [
            (picture, *words(text)[:14])
            for picture, text in zip(part.image_index.tolist(), part.questions, strict=True)
        ]
        for part in (rad_split.train, rad_split.valid)
    ]
    assert len({*seen[0], *seen[1]}) == 2569
    assert set(seen[0]).isdisjoint(seen[1])
    assert len(set(seen[1])) == round(0.1 * 2569)
    tokens = [
        {(picture, *row) for (picture, *_), row in zip(keys, part.tokens.tolist(), strict=True)}
        for keys, part in zip(seen, (rad_split.train, rad_split.valid), strict=True)
    ]
    assert tokens[0].isdisjoint(tokens[1])  # nor does a model see them alike
    # What the page says about the rest.
    assert len(rad_split.valid) == 311
    assert (len(rad_split.answers), rad_split.test.unanswerable) == (435, 58)
    assert set(rad_split.valid.image_index.tolist()) <= set(rad_split.train.image_index.tolist())
    told = [
        [
            (picture, normalise(answer))
            for picture, (answer,), kind in zip(
                part.image_index.tolist(), part.answers, part.types.tolist(), strict=True
            )
            if TYPES[kind] != "yes/no"
        ]
        for part in (rad_split.train, rad_split.valid)
    ]
    assert len(told[1]) == 143
    assert sum(pair in set(told[0]) for pair in told[1]) == 95


def test_rad_fixed_answers_agree_with_the_text_accuracy(rad_split: VQASplit) -> None:
    test = rad_split.test
    for answer in ("yes", "no", "axial"):
        classes = torch.full((len(test),), rad_split.answers.index[answer])
        fast = test.accuracy(classes).double()
        slow = accuracy([answer] * len(test), test.answers, test.types)
        assert fast.mean().item() == pytest.approx(slow["all"])
        assert fast[test.types == 0].mean().item() == pytest.approx(slow["yes/no"])


def test_easy_is_complete(easy_split: VQASplit) -> None:
    assert len(easy_split.train) + len(easy_split.valid) == 38_575
    assert len(easy_split.test) == 9_673
    assert easy_split.train.visual.shape == (5_000, 3, 64, 64)
    pictures = [
        set(part.image_index.tolist())
        for part in (easy_split.train, easy_split.valid, easy_split.test)
    ]
    assert [len(part) for part in pictures] == [3_600, 400, 1_000]
    assert len(set.union(*pictures)) == 5_000
    folder = store.package_folder(entry("easy-vqa"))
    assert folder is not None
    assert set(easy_split.answers.names) == set(easy.read_answers(folder))


def test_easy_shapes_have_the_colour_of_the_answer(easy_split: VQASplit) -> None:
    for part in (easy_split.train, easy_split.valid, easy_split.test):
        rows = [row for row, text in enumerate(part.questions) if "what color is the" in text]
        rows = rows[:200]
        assert rows
        visual, _, scores = part.batch(rows)
        background = visual[:, :, :1, :1]
        # The shape is what differs most from the corner.
        place = (visual - background).abs().sum(1).flatten(1).argmax(1)
        colour = visual.flatten(2)[torch.arange(len(rows)), :, place] * 255
        for row, answer in enumerate(easy_split.answers.decode(scores.argmax(1))):
            assert torch.allclose(colour[row], torch.tensor(COLOURS[answer]).float(), atol=1)


def test_a_small_model_learns_on_rad(rad_split: VQASplit) -> None:
    torch.manual_seed(0)
    split = rad_split
    net = ImageMCAN(
        ConvGrid(feature_size=16, widths=(8, 16, 16)),
        MCAN.tiny(len(split.tokenizer), len(split.answers), feature_size=16),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    losses = []
    order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(0))
    for rows in order[: 15 * 32].split(32):
        visual, tokens, scores = split.train.batch(rows)
        logits = net(visual, tokens)
        loss = binary_cross_entropy_with_logits(logits, scores, reduction="sum") / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.1 * sum(losses[:2]) * 5 / 2
    with torch.no_grad():
        visual, tokens, _ = split.test.batch(slice(0, 100))
        predicted = net(visual, tokens).argmax(1)
    # No answer but yes and no is right so often.
    found = split.test.accuracy(predicted, slice(0, 100)).mean()
    assert found > 0.2


def test_code_of_the_documentation_runs(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    pytest.importorskip("lightning")
    torch.manual_seed(0)
    monkeypatch.setenv("GFLOWOUT_DATA", str(real_data("vqa-rad").parent))
    page = (Path(__file__).parents[2] / "docs/guides/paper-data.md").read_text()
    _, _, text = page.partition("\n## Visual question answering\n")
    session: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/guides/paper-data.md", "exec"), session)
    assert session["result"].history[-1]["valid/nll"] < 150  # 302 = 435 log 2 before training
    _, by_class, by_text, *predicted = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("tensor(") for line in predicted) == 2
    assert re.findall(r"'all': [0-9.]+", by_class) == re.findall(r"'all': [0-9.]+", by_text)


def test_subsets_and_batches(rad_split: VQASplit, real_data: Callable[[str], Path]) -> None:
    questions = rad.read("train", real_data("vqa-rad"))
    numbers = torch.arange(len(questions.picture_names))  # each picture shows its number
    pictures = torch.stack([numbers // 256, numbers % 256], 1)[:, :, None, None].byte()
    whole = encode(questions, rad_split.tokenizer, rad_split.answers, pictures)
    some = torch.arange(0, len(whole), 50)
    part = whole.subset(some)
    assert part.question_ids.tolist() == whole.question_ids[some].tolist()
    for found, expected in zip(part.batch(slice(None)), whole.batch(some), strict=True):
        assert torch.equal(found, expected)
    assert part.questions[3] == whole.questions[150]
    assert part.answers[3] == whole.answers[150]
    assert torch.equal(part.types, whole.types[some])
    shown = (part.batch([3])[0][0].flatten() * 255).round().tolist()
    assert shown[0] * 256 + shown[1] == questions.image_index[150]
    mask = whole.types == 1
    assert len(whole.subset(mask)) == 22
    assert torch.equal(whole.batch([-1])[1], whole.batch([3063])[1])
    with pytest.raises(IndexError, match="rows must be in"):
        whole.batch([3064])
    with pytest.raises(TypeError, match="rows must be integers"):
        whole.batch(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="mask of rows must have 3064"):
        whole.batch(torch.tensor([True]))
