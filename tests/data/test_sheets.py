"""Contact sheets: every pixel of every picture is where it belongs, and words fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops

from gflowout.data import sheets
from gflowout.data.corruptions import KINDS, corrupt
from gflowout.data.errors import DataError
from gflowout.data.images import load_images
from gflowout.data.overlays import load_overlays
from gflowout.data.shifts import rotate


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def places(paper: Image.Image, wanted: Image.Image) -> list[tuple[int, int]]:
    """Where a picture occurs on a sheet, by comparing all pixels."""
    big, small = np.asarray(paper), np.asarray(wanted)
    height, width = small.shape[:2]
    tall, wide = big.shape[0] - height + 1, big.shape[1] - width + 1
    tops, lefts = (each.ravel() for each in np.indices((tall, wide)))
    # Some pixels first: most pictures are black in a corner.
    for place in np.random.default_rng(0).permutation(height * width)[:100]:
        y, x = divmod(int(place), width)
        same = (big[tops + y, lefts + x] == small[y, x]).all(-1)
        tops, lefts = tops[same], lefts[same]
    return [
        (int(left), int(top))
        for top, left in zip(tops, lefts, strict=True)
        if (big[top : top + height, left : left + width] == small).all()
    ]


def enlarged(image: torch.Tensor, scale: int) -> Image.Image:
    """A second way to enlarge: repeat every pixel."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1))


class TestPicture:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_pixels_stay(self, channels):
        image = noise(channels, 5, 7)
        found = torch.from_numpy(np.array(sheets.picture(image))).permute(2, 0, 1)
        assert torch.equal(found, image.expand(3, -1, -1))

    def test_other_tensors_are_refused(self):
        with pytest.raises(ValueError, match="image must be uint8"):
            sheets.picture(torch.rand(3, 4, 4))


class TestSheet:
    def test_pictures_stand_in_rows_in_their_order(self):
        images = noise(7, 3, 8, 8)
        paper = sheets.sheet(images, list("abcdefg"), columns=3, scale=4)
        found = [places(paper, enlarged(image, 4)) for image in images]
        assert all(len(each) == 1 for each in found)
        corners = [each[0] for each in found]
        lefts = sorted({left for left, _ in corners})
        tops = sorted({top for _, top in corners})
        assert corners == [(lefts[k % 3], tops[k // 3]) for k in range(7)]
        assert min(np.diff(lefts)) > 32
        assert min(np.diff(tops)) > 32

    @pytest.mark.parametrize(("side", "scale"), [(28, 3), (32, 3), (8, 12), (200, 1)])
    def test_small_pictures_grow_to_about_a_hundred_pixels(self, side, scale):
        image = noise(1, 1, side, side)
        assert places(sheets.sheet(image, ["x"]), enlarged(image[0], scale))

    def test_words_stand_under_their_picture(self):
        images = torch.zeros(2, 1, 32, 32, dtype=torch.uint8)
        with_words = sheets.sheet(images, ["one", ""], columns=2, scale=3)
        without = sheets.sheet(images, ["two", ""], columns=2, scale=3)
        left, top, right, bottom = ImageChops.difference(with_words, without).getbbox()
        (first, _), (second, start) = places(with_words, enlarged(images[0], 3))
        assert first <= left < right <= first + 96 < second
        assert start + 96 <= top < bottom <= with_words.height

    def test_pictures_of_different_sizes_do_not_overlap(self):
        pictures = [
            sheets.picture(noise(3, 20, 40, seed=1)),
            sheets.picture(noise(3, 50, 10, seed=2)),
        ]
        paper = sheets.sheet(pictures, ["a", "b"], columns=2, scale=1)
        (one,), (two,) = (places(paper, each) for each in pictures)
        assert one[0] + 40 <= two[0]
        assert one[1] + 20 == two[1] + 50

    def test_a_long_title_makes_the_sheet_wider(self):
        images = noise(1, 1, 8, 8)
        assert sheets.sheet(images, ["a"], title="word " * 60).width > 1000

    @pytest.mark.parametrize("number", [0, 2])
    def test_captions_must_fit_the_images(self, number):
        with pytest.raises(ValueError, match=f"captions must be one for each.*got {number} for 1"):
            sheets.sheet(noise(1, 1, 8, 8), ["x"] * number)

    @pytest.mark.parametrize("option", ["columns", "scale"])
    def test_options_are_checked(self, option):
        with pytest.raises(ValueError, match=f"{option} must be an integer >= 1"):
            sheets.sheet(noise(1, 1, 8, 8), ["x"], **{option: 0})


class TestWrap:
    def test_short_text_is_left_alone(self):
        assert sheets.wrap("a cat", 200, 2) == ["a cat"]

    @pytest.mark.parametrize("width", [30, 60, 96, 224])
    def test_lines_fit_and_nothing_is_lost_without_dots(self, width):
        text = "is there not a blue triangle in the lower part of the image"
        font = sheets._font(sheets._TEXT)
        lines = sheets.wrap(text, width, 100)
        assert all(font.getlength(line) <= width for line in lines)
        if not any(line.endswith("...") for line in lines):
            assert " ".join(lines) == text
        short = sheets.wrap(text, width, 2)
        assert len(short) <= 2
        assert all(font.getlength(line) <= width for line in short)
        assert short[-1].endswith("...") or " ".join(short) == text

    def test_one_long_word_is_cut(self):
        (line,) = sheets.wrap("pneumonoultramicroscopic", 60, 3)
        assert line.startswith("pne")
        assert line.endswith("...")

    def test_paragraphs_are_kept_apart(self):
        lines = sheets.wrap("a question that is much too long for this\nyes", 80, 1)
        assert lines[0].endswith("...")
        assert lines[1:] == ["yes"]


class TestBlocks:
    def test_rows_are_treatments_and_columns_are_pictures(self):
        rows = [noise(3, 1, 8, 8, seed=seed) for seed in range(4)]
        parts = [
            sheets.Block("up", (("clean", rows[0]), ("1", rows[1]))),
            sheets.Block("down", (("clean", rows[2]), ("1", rows[3]))),
        ]
        paper = sheets.blocks(parts, ["a", "b", "c"], scale=2)
        corners = [[places(paper, enlarged(image, 2)) for image in row] for row in rows]
        assert all(len(each) == 1 for row in corners for each in row)
        lefts = [[each[0][0] for each in row] for row in corners]
        assert all(row == lefts[0] == sorted(set(row)) for row in lefts)
        tops = [{each[0][1] for each in row} for row in corners]
        assert all(len(row) == 1 for row in tops)
        heights = [row.pop() for row in tops]
        assert heights == sorted(set(heights))
        assert heights[-1] + 16 <= paper.height

    def test_headings_must_fit_the_rows(self):
        with pytest.raises(ValueError, match=r"got 2 for rows of \[3\]"):
            sheets.blocks([sheets.Block("x", (("1", noise(3, 1, 8, 8)),))], ["a", "b"])


class TestChoose:
    def test_each_column_shows_one_class(self):
        labels = torch.randint(5, (500,), generator=torch.Generator().manual_seed(1))
        drawn = sheets.choose(labels, 5, 15, 5, seed=3)
        assert labels[drawn].tolist() == [0, 1, 2, 3, 4] * 3
        assert len(set(drawn.tolist())) == 15

    def test_many_classes_are_drawn_at_random(self):
        labels = torch.arange(100).repeat(5)
        drawn = sheets.choose(labels, 100, 50, 10, seed=3)
        assert len(set(drawn.tolist())) == 50
        assert labels[drawn].tolist() != sorted(labels[drawn].tolist())

    def test_seed_decides(self):
        labels = torch.zeros(1000, dtype=torch.int64)
        one, same, other = (sheets.choose(labels, 1, 9, 3, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


class TestRealData:
    def test_every_class_of_mnist_is_shown_with_its_digit(self, real_data):
        folder = real_data("mnist")
        paper = sheets.contact_sheet("mnist", folder, rows=1, seed=5)
        images = load_images("mnist", "test", folder)
        drawn = sheets.choose(images.labels, 10, 10, 10, seed=5)
        assert images.labels[drawn].tolist() == list(range(10))
        corners = [places(paper, enlarged(image, 3)) for image in images.images[drawn]]
        assert [len(each) for each in corners] == [1] * 10
        assert corners == sorted(corners)

    def test_corruptions_are_those_of_the_library(self, real_data):
        folder, frost = real_data("mnist"), real_data("frost")
        assert folder.parent == frost.parent
        paper = sheets.contact_sheet(
            "mnist", folder.parent, corruptions=KINDS, severity=4, columns=10, seed=2
        )
        images = load_images("mnist", "test", folder)
        some = images.images[sheets.choose(images.labels, 10, 10, 10, seed=2)]
        for kind in KINDS:
            spoiled = corrupt(some, kind, 4, seed=2, overlays=load_overlays(folder.parent))
            assert len(places(paper, enlarged(spoiled[3], 3))) == 1
        assert len(places(paper, enlarged(some[3], 3))) == len(KINDS)

    def test_rotations_are_those_of_the_library(self, real_data):
        folder = real_data("notmnist")
        paper = sheets.contact_sheet("notmnist", folder, rotated=True, rows=2, seed=2)
        images = load_images("notmnist", "test", folder)
        some = images.images[sheets.choose(images.labels, 10, 10, 10, seed=2)]
        for turn in range(2):
            assert len(places(paper, enlarged(rotate(some, seed=2 + turn)[0], 3))) == 1

    def test_overlays_and_questions(self, real_data):
        assert sheets.contact_sheet("frost", real_data("frost")).width > 900
        questions = sheets.contact_sheet("vqa-rad", real_data("vqa-rad"), rows=1, columns=2)
        other = sheets.contact_sheet("vqa-rad", real_data("vqa-rad"), rows=1, columns=2, seed=1)
        assert questions.tobytes() != other.tobytes()


class TestErrors:
    def test_clinical_data_have_no_images(self):
        with pytest.raises(DataError, match="eicu-demo: has no images to show"):
            sheets.contact_sheet("eicu-demo")

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("frost", {"rotated": True}, "for sets of images, not for 'frost'"),
            ("cifar10-c", {"split": "train"}, "not for 'cifar10-c'"),
            ("mnist", {"rotated": True, "corruptions": ("snow",)}, "separate sheets"),
            ("mnist", {"severity": 3}, "severity is for corruptions"),
            ("mnist", {"severity": 6, "corruptions": ("snow",)}, "from 1 to 5, got 6"),
            ("mnist", {"rows": 0}, "rows must be an integer >= 1"),
        ],
    )
    def test_options_that_do_not_apply(self, name, options, message):
        with pytest.raises(ValueError, match=message):
            sheets.contact_sheet(name, **options)
