"""Shifts: rotations against SciPy, label noise by its definition, padding that stays padding."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gflowout.data.shifts import draw_angles, feature_noise, label_noise, rotate, rotate_by


def smooth(count: int, channels: int, height: int, width: int) -> Tensor:
    """Images that bilinear interpolation follows well, bright in the middle."""
    y = torch.linspace(-1, 1, height)[:, None]
    x = torch.linspace(-1, 1, width)
    phase = torch.arange(count * channels).view(count, channels, 1, 1)
    values = 128 + 100 * torch.sin(3 * x + phase) * torch.cos(4 * y - phase)
    return values.to(torch.uint8)


@pytest.mark.parametrize("size", [(28, 28), (32, 32), (20, 33)])
@pytest.mark.parametrize("angle", [0.0, 17.0, 45.0, 90.0, 133.3, -60.0, 359.0])
def test_rotation_agrees_with_scipy(angle: float, size: tuple[int, int]) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    images = smooth(2, 3, *size)
    turned = rotate_by(images, angle)
    expected = ndimage.rotate(
        images.double().numpy(), angle, axes=(3, 2), reshape=False, order=1, mode="constant"
    )
    # Pixels that come from inside: at the border SciPy has zero where we interpolate towards it.
    inside = ndimage.rotate(torch.ones(size).numpy(), angle, reshape=False, order=1) > 0.999
    inside &= ndimage.binary_erosion(inside, iterations=1)
    difference = (turned.double() - torch.from_numpy(expected)).abs()[..., torch.from_numpy(inside)]
    assert inside.mean() > 0.3
    assert difference.max() <= 0.51


def test_a_quarter_turn_is_exact() -> None:
    images = torch.randint(256, (5, 3, 28, 28), dtype=torch.uint8)
    assert torch.equal(rotate_by(images, 90), torch.rot90(images, 1, (2, 3)))
    assert torch.equal(rotate_by(images, 180), images.flip(2, 3))
    assert torch.equal(rotate_by(images, 360), images)


def test_corners_become_zero() -> None:
    turned = rotate_by(torch.full((1, 1, 28, 28), 255, dtype=torch.uint8), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 14, 14] == 255


def test_each_image_has_its_own_angle() -> None:
    images = smooth(1, 1, 28, 28).expand(1100, 1, 28, 28)
    turned = rotate(images, seed=3)
    angles = draw_angles(1100, seed=3)
    for index in (0, 1, 511, 512, 1099):
        assert torch.equal(turned[index], rotate_by(images[:1], float(angles[index]))[0])
    assert torch.equal(turned[:20], rotate(images[:20], seed=3))
    assert not torch.equal(turned, rotate(images, seed=4))


def test_angles_are_uniform() -> None:
    angles = draw_angles(20_000, seed=0, low=-30, high=90)
    assert float(angles.min()) >= -30
    assert float(angles.max()) < 90
    counts = torch.histc(angles.float(), 12, -30, 90)
    assert ((counts - 20_000 / 12).abs() < 5 * (20_000 / 12) ** 0.5).all()


def test_label_noise_is_as_defined() -> None:
    labels = torch.arange(5000) % 10
    noisy, drawn = label_noise(labels, 0.3, 10, seed=0)
    assert int(drawn.sum()) == 1500
    assert torch.equal(noisy[~drawn], labels[~drawn])
    counts = torch.bincount(noisy[drawn], minlength=10).double()
    assert ((counts - 150).abs() < 5 * 150**0.5).all()
    same = (noisy[drawn] == labels[drawn]).double().mean()
    assert abs(float(same) - 0.1) < 0.04
    again, _ = label_noise(labels, 0.3, 10, seed=0)
    other, _ = label_noise(labels, 0.3, 10, seed=1)
    assert torch.equal(noisy, again)
    assert not torch.equal(noisy, other)
    assert torch.equal(labels, torch.arange(5000) % 10)


@pytest.mark.parametrize(("fraction", "count"), [(0, 0), (1, 7), (0.3, 2), (0.5, 4)])
def test_label_noise_rounds(fraction: float, count: int) -> None:
    _, drawn = label_noise(torch.zeros(7, dtype=torch.int64), fraction, 3, seed=0)
    assert int(drawn.sum()) == count


def test_feature_noise_has_its_scale_and_spares_padding() -> None:
    features = torch.randn(150, 6, 40)
    features[::3, 4:] = 0
    noisy = feature_noise(features, 0.5, seed=0)
    padded = (features == 0).all(-1)
    assert (noisy[padded] == 0).all()
    noise = (noisy - features)[~padded]
    assert abs(float(noise.std()) - 0.5) < 0.01
    assert abs(float(noise.mean())) < 0.01
    assert torch.equal(noisy[:100], feature_noise(features[:100], 0.5, seed=0))
    assert not torch.equal(noisy, feature_noise(features, 0.5, seed=1))


def test_feature_noise_belongs_to_the_number_of_a_row() -> None:
    features = torch.randn(150, 3, 8)
    noisy = feature_noise(features, 0.5, seed=0)
    order = torch.randperm(150)
    shuffled = feature_noise(features[order], 0.5, seed=0, index=order)
    assert torch.equal(shuffled, noisy[order])
    # Two questions about one picture, anywhere in a batch, and a number beyond the batch.
    two = feature_noise(features[[7, 9, 7]], 0.5, seed=0, index=torch.tensor([7, 900, 7]))
    assert torch.equal(two[0], two[2])
    assert torch.equal(two[0], noisy[7])
    assert not torch.equal(two[1], noisy[9])
    noise = noisy - features
    assert noise.flatten(1).corrcoef().fill_diagonal_(0).abs().max() < 0.9  # none occurs twice


def test_feature_noise_takes_a_mask() -> None:
    features = torch.ones(3, 4, 5, dtype=torch.float64)
    features[0, 1] = 0  # a real region whose features happen to be zero
    mask = torch.tensor([[True, True, False, False]]).expand(3, 4)
    noisy = feature_noise(features, 1.0, seed=0, mask=mask)
    assert (noisy[~mask] == 0).all()
    assert (noisy[mask] != 0).all()
    assert noisy.dtype == torch.float64


def test_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    rotate(smooth(2, 1, 28, 28), seed=0)
    label_noise(torch.zeros(9, dtype=torch.int64), 0.5, 2, seed=0)
    feature_noise(torch.ones(2, 2, 2), 1, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rotate(torch.zeros(2, 1, 3, 3), seed=0), "images must be uint8"),
        (
            lambda: rotate(torch.zeros(2, 28, 28, dtype=torch.uint8), seed=0),
            r"images must be uint8 \[N, C, H, W\] with C = 1 or 3, got uint8 \[2, 28, 28\]",
        ),
        (lambda: rotate(smooth(2, 1, 3, 3), seed=0, low=9, high=3), r"high must be .* \[9, inf\)"),
        (lambda: rotate_by(smooth(2, 1, 3, 3), torch.zeros(3)), r"degrees must be .* and \[2\]"),
        (lambda: label_noise(LABELS, 1.5, 3, seed=0), r"fraction must be .* \[0, 1\], got 1.5"),
        (lambda: label_noise(LABELS, 0.5, 2, seed=0), "labels must be less than classes=2, got 2"),
        (lambda: label_noise(LABELS.float(), 0.5, 3, seed=0), "labels must be int64"),
        (lambda: feature_noise(torch.ones(2, 2), 1, seed=0), r"features must be .*\[N, R, D\]"),
        (lambda: feature_noise(torch.ones(2, 2, 2), -1, seed=0), "scale must be"),
        (
            lambda: feature_noise(torch.ones(2, 3, 2), 1, seed=0, index=torch.tensor([4])),
            "index must have a number for each of the 2 rows, got 1",
        ),
        (
            lambda: feature_noise(torch.ones(2, 3, 2), 1, seed=0, index=torch.tensor([4, -1])),
            "index must be int64 .N. and none negative, got -1",
        ),
        (
            lambda: feature_noise(torch.ones(2, 3, 2), 1, seed=0, mask=torch.ones(2, 2) > 0),
            r"mask must be bool \[2, 3\], got bool \[2, 2\]",
        ),
    ],
)
def test_errors_name_the_argument(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        call()


def test_documented_code_runs() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/data.md").read_text()
    _, _, text = page.partition("\n## Shifts\n")  # what comes before downloads
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert "corrupt(" in code
    exec(compile(code, "docs/guides/data.md", "exec"), {"__name__": "docs"})
