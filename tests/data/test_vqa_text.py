import re

import pytest
import torch

from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.vqa import Tokenizer
from gflowout.data.vqa.inputs import words


def published_words(question: str) -> list[str]:
    """The same by characters instead of expressions."""
    kept = [letter for letter in question.lower() if letter not in ".,'!?\"()*#:;"]
    return "".join(" " if letter in "-/" else letter for letter in kept).split()


@pytest.mark.parametrize(
    "question",
    [
        "What's the man/woman holding?",
        'Is the "T-shirt" red, (or) blue; #1: no*!',
        "  Is\tit   U.S.A.? ",
        "???",
        "Café & co_worker 50%",
    ],
)
def test_words_as_published(question: str) -> None:
    assert words(question) == published_words(question)


def test_words_by_hand() -> None:
    left = ["whats", "on", "the", "left", "hand", "side", "top"]
    assert words("What's on the left-hand side / top?") == left
    assert words("What's the man/woman's T-shirt?") == [
        "whats",
        "the",
        "man",
        "womans",
        "t",
        "shirt",
    ]


def test_ids_follow_first_appearance_and_the_rest_is_unknown_or_padding() -> None:
    tokenizer = Tokenizer.fit(["Is it red?", "Is the dog red?"])
    assert tokenizer.vocabulary == ("is", "it", "red", "the", "dog")
    assert len(tokenizer) == 7
    tokens = tokenizer.encode(["IS the cat red", "dog"])
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[2, 5, 1, 4] + [0] * 10, [6] + [0] * 13]
    assert tokenizer.decode(tokens) == ["is the ? red", "dog"]


def test_long_questions_are_cut_and_empty_ones_are_one_unknown_word() -> None:
    tokenizer = Tokenizer.fit(["a b c"], length=2)
    assert tokenizer.encode(["a b c", "?!", ""]).tolist() == [[2, 3], [1, 0], [1, 0]]
    assert tokenizer.encode([]).shape == (0, 2)


def test_rare_words_are_unknown() -> None:
    assert Tokenizer.fit(["a b", "b"], min_count=2).vocabulary == ("b",)


def test_json_goes_both_ways() -> None:
    tokenizer = Tokenizer.fit(["Où est-il?"], length=7)
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer
    with pytest.raises(ValueError, match=r"Tokenizer\.to_json"):
        Tokenizer.from_json("[]")


def test_a_single_text_is_no_list_of_questions() -> None:
    with pytest.raises(TypeError, match="questions must be a list"):
        Tokenizer.fit("Is it red?")
    with pytest.raises(TypeError, match="questions must be a list"):
        Tokenizer.fit(["a"]).encode("Is it red?")
    with pytest.raises(ValueError, match="each word once"):
        Tokenizer(("a", "a"))


def test_embeddings_by_word(tmp_path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(
        "the 1 2 3\nred 4 5 6\n. . . 7 8 9\nred x@y.com 1 1 1\nunk 0.5 0.5 0.5\nred 9 9 9\n"
    )
    table = Tokenizer.fit(["the red zeppelin"]).embeddings(path)
    expected = [[0, 0, 0], [0.5, 0.5, 0.5], [1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert table.tolist() == expected


def test_embeddings_with_a_header(tmp_path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\nthe 1 2 3\nred 4 5 6\n")
    assert Tokenizer.fit(["red"]).embeddings(path)[2].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1 2 3\nred 4 5", "line 2 has 2 numbers"),
        ("the 1 2 3\nred 4 x 6\n", "line 2 is not a word"),
        ("der 1 2 3\n", "none of the 2 words"),
        ("", "none of the 2 words"),
    ],
)
def test_broken_embeddings(tmp_path, content: str, message: str) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.fit(["the red"]).embeddings(path)
    assert str(caught.value).startswith(str(path))


def test_missing_embeddings(tmp_path) -> None:
    path = tmp_path / "no.txt"
    with pytest.raises(MissingDataError, match=re.escape(str(path))):
        Tokenizer.fit(["the red"]).embeddings(path)
