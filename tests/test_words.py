"""Plain technical English: expressions that readers had to read twice, and what to say instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = {
    "told apart": "significantly different; distinguished",
    "tell apart": "distinguish",
    "tells apart": "distinguishes",
    "stands holm": "remains significant after Holm correction",
    "stand holm": "remain significant after Holm correction",
    "worked out by": "computed by",
    "mask meets": "is broadcast; is applied",
    "masks meet": "are broadcast; are applied",
    "suits the place": "say which option is for what",
    "buys nothing": "has no advantage",
    "begun with": "started with",
    "told best from": "is best at detecting",
    "memory beyond which": "stop a run that uses more than",
    "likewise": "repeat what is meant",
    "knows nothing": "say what it does",
    "knows not": "say what it does",
    "at the door": "up front",
    "goes before": "overrides; precedes",
    "no padding": "real tokens",
    "the figures": "the numbers",
    "same figures": "same numbers",
    "own figures": "own numbers",
    "no figures": "no numbers",
    "became of": "what was found; what happens to",
    "in the place of": "in place of; instead of",
    "rightly": "correctly",
    "to be had": "available",
    "can be had": "is available; is possible",
    "cannot be told": "cannot be decided; is ambiguous",
    "whilst": "while",
    "thereof": "of it",
    "wherein": "in which",
    "whereby": "by which",
    "so to say": "leave it out",
    "per se": "leave it out",
}
"""Whole words in lower case, and what to say."""
GENERATED = {"docs/results/results.md"}
"""Files whose sentences are written elsewhere."""
NAMES = {"each", "found", "held", "lay", "made", "put_off", "told"}
"""Names of variables that do not say what quantity they hold."""


def files() -> Iterator[Path]:
    """All that users read: README, pages, examples, and code with its docstrings and messages."""
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))
    for folder, endings in (
        ("docs", "md py"),
        ("examples", "py ipynb"),
        ("src", "py toml jinja js"),
        ("tools", "py"),
    ):
        for ending in endings.split():
            yield from sorted((ROOT / folder).rglob(f"*.{ending}"))


def faults(text: str) -> list[str]:
    """The expressions that a text uses, with the words around them and what to say."""
    plain = " ".join(text.lower().split())
    return [
        f"...{plain[max(0, match.start() - 30) : match.end() + 30]}...; say: {instead}"
        for words, instead in WORDS.items()
        if words in plain  # much faster than a search for whole words
        for match in re.finditer(rf"\b{words}\b", plain)
    ]


def test_words_are_plain() -> None:
    names = [path for path in files() if path.relative_to(ROOT).as_posix() not in GENERATED]
    assert len(names) > 300
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in names
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a is not told\napart from b", 1),
        ("It stands Holm's correction.", 1),
        ("the figures of the paper, Likewise", 2),
        ("see the figure, Figure 2 and figures.append(x)", 0),
        ("fortold apartment", 0),
    ],
)
def test_expressions_are_found_across_lines_and_as_whole_words(text: str, count: int) -> None:
    assert len(faults(text)) == count


def vague(source: str) -> set[str]:
    """Variables, attributes and parameters of a module whose names are in :data:`NAMES`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names & NAMES


def test_variables_are_named_by_their_quantity() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 200
    for source in sources:
        assert not vague(source.read_text(encoding="utf-8")), source.relative_to(ROOT)


def test_vague_names_are_seen_wherever_they_are_bound() -> None:
    source = "def f(told): self.held = [each for each in told]; print(found); other(made=1)"
    assert vague(source) == {"told", "held", "each"}
