from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gflowout.data.vqa import Answers, accuracy, by_type, count_accuracy, question_accuracy


def brute_force(answer: str, annotators: list[str]) -> float:
    """Mean over all sets of all annotators but one."""
    subsets = list(combinations(annotators, len(annotators) - 1))
    return sum(min(1, subset.count(answer) / 3) for subset in subsets) / len(subsets)


@pytest.mark.parametrize(
    ("agree", "expected"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (5, 1), (10, 1)]
)
def test_of_ten_annotators(agree: int, expected: float) -> None:
    annotators = ["yes"] * agree + ["no"] * (10 - agree)
    assert question_accuracy(["yes"], [annotators]).item() == pytest.approx(expected)


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12), st.sampled_from("bcde"))
def test_agrees_with_brute_force(annotators: list[str], answer: str) -> None:
    expected = brute_force(answer, annotators)
    assert question_accuracy([answer], [annotators]).item() == pytest.approx(expected)
    matches = torch.tensor(annotators.count(answer))
    assert count_accuracy(matches, len(annotators)).item() == pytest.approx(expected)


@given(
    st.lists(
        st.lists(st.sampled_from(["yes", "no", "2", "red", "don't"]), min_size=10, max_size=10),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_tensor_form_agrees_with_texts(annotators: list[list[str]], data: st.DataObject) -> None:
    answers = Answers(("no", "yes", "red", "2"))
    predicted = torch.tensor([data.draw(st.integers(0, 3)) for _ in annotators])
    counts = answers.count(annotators)
    fast = count_accuracy(counts.of(predicted), counts.annotators)
    assert torch.allclose(fast, question_accuracy(answers.decode(predicted), annotators))


def test_prediction_is_always_normalised() -> None:
    assert question_accuracy(["The two."], [["2"] * 10]).item() == 1


def test_annotators_are_normalised_only_if_they_differ_and_then_only_their_punctuation() -> None:
    # All the same: compared as they are.
    assert question_accuracy(["t-shirt"], [["t-shirt"] * 10]).item() == 0
    # Not all the same: "t-shirt" becomes "t shirt", as in the prediction.
    assert question_accuracy(["t-shirt"], [["t-shirt"] * 9 + ["shirt"]]).item() == 1
    # Number words and articles of annotators stay.
    assert question_accuracy(["two"], [["two"] * 9 + ["3"]]).item() == 0


def test_single_annotator() -> None:
    scores = question_accuracy(["yes", "no", "pons"], [["Yes"], ["Yes"], ["The pons."]])
    assert scores.tolist() == [1, 0, 1]
    assert count_accuracy(torch.tensor([0, 1]), torch.tensor([1, 1])).tolist() == [0, 1]
    assert count_accuracy(torch.tensor([0]), torch.tensor([0])).tolist() == [0]


def test_by_type() -> None:
    annotators = [["yes"] * 10, ["no"] * 8 + ["yes"] * 2, ["red"] * 10]
    types = torch.tensor([0, 0, 2])
    found = accuracy(["yes", "yes", "blue"], annotators, types)
    assert found == pytest.approx({"all": 1.6 / 3, "yes/no": 0.8, "other": 0})
    names = ["yes/no", "yes/no", "other"]
    assert accuracy(["yes", "yes", "blue"], annotators, names) == found
    assert accuracy(["yes", "yes", "blue"], annotators) == {"all": found["all"]}


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="one entry per question, got 1 and 2"):
        accuracy(["yes"], [["yes"], ["no"]])
    with pytest.raises(ValueError, match="for question 0"):
        accuracy(["yes"], [[]])
    with pytest.raises(ValueError, match="list of answers per question, got 'yes'"):
        accuracy(["yes"], ["yes"])
    with pytest.raises(TypeError, match="predicted must be a list"):
        accuracy("yes", [["yes"]])
    with pytest.raises(ValueError, match="types must have one entry"):
        by_type(torch.ones(2), torch.zeros(3))
    with pytest.raises(ValueError, match="at least one question"):
        by_type(torch.ones(0))
    with pytest.raises(ValueError, match="types must be one of"):
        by_type(torch.ones(1), ["numbers"])
