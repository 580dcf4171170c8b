import pytest
import torch

from gflowout.data.vqa import Answers, normalise, soft_scores
from gflowout.data.vqa.answers import strip_punctuation

# What the official evaluation code makes of these, oddities included.
OFFICIAL = [
    ("Yes", "yes"),
    ("The dog.", "dog"),
    ("a cat and an owl", "cat and owl"),
    ("none", "0"),
    ("Ten", "10"),
    ("eleven", "eleven"),
    ("twenty one", "twenty 1"),
    ("dont know", "don't know"),
    ("Im", "im"),
    ("couldnt've", "couldn't've"),
    ("couldn'tve", "couldn't've"),
    ("couldntve", "couldntve"),
    ("somebody'd", "somebodyd"),
    ("yall'd've", "y'all'd've"),
    ("'ows'at", "'ow's'at"),
    ("man's", "man's"),
    ("let's", "let's"),
    ("black/white", "black white"),
    ("black / white", "black white"),
    ("black/ white", "black white"),
    ("t-shirt", "t shirt"),
    ("x-ray - chest", "xray chest"),  # one mark beside a space takes out all of its kind
    ("1,000", "1000"),
    ("1,000 t-shirts", "1000 tshirts"),  # a comma between digits takes out every mark
    ("3.5", "3.5"),
    (".5 miles.", ".5 miles"),
    ("u.s.a.", "usa"),
    ("7:30", "7:30"),
    ("50%", "50%"),
    ("yes\tno\n", "yes no"),
    ("  ", ""),
    ("the", ""),
    ("." * 40, "." * 8),  # the official code takes out 32 periods at most
]


@pytest.mark.parametrize(("answer", "expected"), OFFICIAL)
def test_official_normalisation(answer: str, expected: str) -> None:
    assert normalise(answer) == expected


def test_punctuation_alone_keeps_case_articles_and_numbers() -> None:
    assert strip_punctuation("The two-toed Sloth!") == "The two toed Sloth "
    texts = ("black/white", "1,000", "no.")
    assert [strip_punctuation(text) for text in texts] == ["black white", "1000", "no"]


def test_vocabulary_is_by_frequency_and_above_the_minimum() -> None:
    given = ["no"] * 3 + ["Yes."] * 2 + ["yes"] + ["blue"] * 2 + ["two", "2", "red"]
    assert Answers.fit(given).names == ("no", "yes", "2", "blue", "red")
    assert Answers.fit(given, min_count=2).names == ("no", "yes")
    assert Answers.fit(reversed(given), min_count=1).names == ("no", "yes", "2", "blue")
    assert Answers.fit(["the", ""]).names == ()


def test_counts_are_of_normalised_answers_and_misses_are_counted() -> None:
    answers = Answers(("yes", "2", "red"))
    counts = answers.count([["2", "two", "Two.", "3"], ["maybe"], [], ["red"] * 9 + ["yes"]])
    dense = counts.dense(counts.counts, 3)
    assert dense.tolist() == [[0, 3, 0], [0, 0, 0], [0, 0, 0], [1, 0, 9]]
    assert counts.annotators.tolist() == [4, 1, 0, 10]
    assert counts.missed.tolist() == [1, 1, 0, 0]
    assert counts.of(torch.tensor([1, 0, 0, 2])).tolist() == [3, 0, 0, 9]
    assert counts[torch.tensor([3])].of(torch.tensor([0])).tolist() == [1]


def test_soft_scores() -> None:
    counts = torch.arange(5)
    third = 1 / 3
    assert torch.allclose(soft_scores(counts), torch.tensor([0, third, 2 * third, 1, 1]))
    published = soft_scores(counts, scoring="accuracy")
    assert torch.allclose(published, torch.tensor([0, 0.3, 0.6, 0.9, 1]))
    for scoring in ("capped", "accuracy"):
        assert soft_scores(torch.tensor([0, 1]), 1, scoring).tolist() == [0, 1]
    with pytest.raises(ValueError, match="scoring must be one of"):
        soft_scores(counts, scoring="cap")


def test_json_goes_both_ways() -> None:
    answers = Answers(("yes", "don't know"))
    assert Answers.from_json(answers.to_json()) == answers
    assert answers.decode(torch.tensor([1, 0])) == ["don't know", "yes"]
    with pytest.raises(ValueError, match=r"Answers\.to_json"):
        Answers.from_json("{")


def test_errors_name_the_argument() -> None:
    with pytest.raises(TypeError, match="answers must be a list"):
        Answers.fit("yes")
    with pytest.raises(ValueError, match="min_count must be an integer"):
        Answers.fit(["yes"], min_count=-1)
    with pytest.raises(ValueError, match="each answer once"):
        Answers(("yes", "yes"))
