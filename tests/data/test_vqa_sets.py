"""Which questions are held out, and what training may learn from, on sets made here."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vqa_files import RAD, write_rad

from gflowout.data.vqa import Answers, Tokenizer, load
from gflowout.data.vqa.sets import Questions, hold_out


def questions(*asked: tuple[int, str]) -> Questions:
    """Questions from pairs of a picture and a text."""
    count = len(asked)
    return Questions(
        name="made",
        split="train",
        questions=tuple(text for _, text in asked),
        question_ids=torch.arange(count),
        picture_names=tuple("abcdefgh"),
        image_index=torch.tensor([picture for picture, _ in asked]),
        answers=(("yes",),) * count,
        main=("yes",) * count,
        types=torch.zeros(count, dtype=torch.int64),
    )


ASKED = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(["Is it red?", "is it RED", "Is it -- red", "Is it red or blue?", "Red?"]),
    ),
    min_size=12,
    max_size=60,
)


@given(asked=ASKED, seed=st.integers(0, 99), length=st.sampled_from([3, 14]))
def test_no_model_sees_a_validation_question_in_training(asked, seed, length) -> None:
    made = questions(*asked)
    tokens = Tokenizer.fit(made.questions, length=length).encode(made.questions).tolist()
    seen = [(picture, *row) for (picture, _), row in zip(asked, tokens, strict=True)]
    rest, held = hold_out(made, 0.3, by_image=False, seed=seed, length=length)
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(asked)))
    valid = {seen[row] for row in held.tolist()}
    assert valid.isdisjoint(seen[row] for row in rest.tolist())
    assert len(valid) == round(0.3 * len(set(seen)))


def test_other_words_about_the_same_picture_may_be_on_both_sides() -> None:
    made = questions(*((0, f"Is it {word}?") for word in ["red", "blue", "round", "square"]))
    rest, held = hold_out(made, 0.5, by_image=False, seed=0)
    assert len(rest) == len(held) == 2


def test_whole_pictures_are_held_out_if_asked_for() -> None:
    made = questions(*((row % 6, f"Is it number {row}?") for row in range(60)))
    mixed = 0
    for seed in range(5):
        for by_image in (True, False):
            rest, held = hold_out(made, 0.5, by_image=by_image, seed=seed)
            common = set(made.image_index[rest].tolist()) & set(made.image_index[held].tolist())
            assert len(held) == 30
            if by_image:
                assert not common
            else:
                mixed += len(common)
    assert mixed > 20


def test_choice_follows_from_the_seed_and_leaves_the_global_generator_alone() -> None:
    made = questions(*((0, f"Is it {row}?") for row in range(50)))
    state = torch.get_rng_state()
    first, again, other = (hold_out(made, 0.2, by_image=False, seed=s)[1] for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(hold_out(made, 0, by_image=True, seed=0)[1]) == 0


def test_a_share_that_leaves_nothing_is_named() -> None:
    made = questions((0, "Is it?"), (0, "is it"), (1, "Is it?"))
    with pytest.raises(ValueError, match=r"valid must leave .* got 0.9, .* all 2 pictures"):
        hold_out(made, 0.9, by_image=True, seed=0)
    with pytest.raises(ValueError, match="all 2 different questions"):
        hold_out(made, 0.9, by_image=False, seed=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rad(tmp_path / "vqa_rad")
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
def test_vocabularies_are_of_training_without_validation(folder: Path, seed: int) -> None:
    # All five training questions have answers and words of their own.
    split = load("vqa-rad", folder, valid=0.4, seed=seed, size=8)
    assert (len(split.train), len(split.valid), len(split.test)) == (3, 2, 2)
    assert split.answers == Answers.fit(answer for (answer,) in split.train.answers)
    assert split.tokenizer == Tokenizer.fit(split.train.questions)
    assert len(split.answers) == 3
    assert split.valid.unanswerable == 2
    assert not split.valid.scores(slice(None)).any()
    assert (split.valid.tokens == 1).any(1).all()  # a word that training does not have


def test_load_holds_out_as_it_is_told(folder: Path) -> None:
    pictures = {name for name, *_ in RAD[:5]}
    assert len(pictures) == 2
    common = []
    for by_image in (True, False, None):
        for seed in range(4):
            split = load("vqa-rad", folder, valid=0.4, by_image=by_image, seed=seed, size=8)
            sides = [set(part.image_index.tolist()) for part in (split.train, split.valid)]
            common.append(len(sides[0] & sides[1]))
    assert not any(common[:4])
    assert any(common[4:8])
    assert common[4:8] == common[8:]  # its test is about known pictures, so validation is, too


def test_questions_that_differ_beyond_their_length_stay_together(folder: Path) -> None:
    torn = {14: 0, 1: 0}
    for length in torn:
        for seed in range(6):
            split = load("vqa-rad", folder, valid=0.4, seed=seed, length=length, size=8)
            both = [number in split.valid.question_ids for number in (0, 1)]  # "Is", about one
            torn[length] += both[0] != both[1]
    assert torn[14] > 0
    assert torn[1] == 0
