"""Corruptions: against a second implementation, against the published package, and by hand."""

import functools
import io
import itertools
import math
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gflowout.data import corruptions, overlays
from gflowout.data.corruptions import (
    KINDS,
    SEVERITIES,
    TABLES,
    Constants,
    apply_frost,
    apply_gaussian_noise,
    apply_snow,
    corrupt,
    motion_blur,
    snow_layer,
)
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.overlays import OVERLAYS, crop_overlays, fit_overlays, load_overlays

CIFAR = TABLES["cifar-c"]


def noise_images(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


@functools.cache
def frosts() -> list[Tensor]:
    return [noise_images(3, 300 + 5 * i, 320 + 10 * i, seed=i) for i in range(6)]


def plain_blur(layer: list[list[float]], angle: float, radius: int, sigma: float) -> Tensor:
    """Motion blur of one layer, pixel by pixel."""
    height, width = len(layer), len(layer[0])
    kernel = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    total = sum(kernel)
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    trace = [(math.ceil(i * sine - 0.5), math.ceil(i * cosine - 0.5)) for i in range(len(kernel))]
    result = [[0.0] * width for _ in range(height)]
    for y in range(height):
        for x in range(width):
            for weight, (down, right) in zip(kernel, trace, strict=True):
                row = min(max(y + down, 0), height - 1)
                column = min(max(x + right, 0), width - 1)
                result[y][x] += weight / total * layer[row][column]
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("angle", [-135.0, -100.3, -90.0, -45.0, 30.0])
def test_motion_blur_is_the_plain_sum(angle: float) -> None:
    layers = torch.rand(2, 9, 7, dtype=torch.float64)
    other = torch.tensor([angle, -60.0])
    blurred = motion_blur(layers, other, 5, 2.5)
    for layer, degrees, result in zip(layers, other.tolist(), blurred, strict=True):
        expected = plain_blur(layer.tolist(), degrees, 5, 2.5)
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("size", [(32, 32), (28, 28), (40, 33)])
def test_cifar_snow_layer_is_the_plain_one(severity: int, size: tuple[int, int]) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    constants = CIFAR.snow[severity - 1]
    normal = torch.randn(1, *size, dtype=torch.float64)
    layer = constants.mean + constants.std * normal[0].numpy()
    taken = [math.ceil(side / constants.zoom) for side in size]
    top, left = ((side - part) // 2 for side, part in zip(size, taken, strict=True))
    layer = layer[top : top + taken[0], left : left + taken[1]]
    layer = ndimage.zoom(layer, constants.zoom, order=1)
    top, left = ((have - need) // 2 for have, need in zip(layer.shape, size, strict=True))
    layer = layer[top : top + size[0], left : left + size[1]]
    layer[layer < constants.threshold] = 0
    layer = (layer.clip(0, 1) * 255).astype("uint8") / 255
    expected = plain_blur(layer.tolist(), -77.7, constants.radius, constants.sigma)
    got = snow_layer(normal, torch.tensor([-77.7]), CIFAR, severity)[0]
    difference = (got * 255 - (expected * 255).round()).abs()
    assert difference.max() <= 1.001  # a sum may fall on the other side of a half
    assert (difference > 0.5).float().mean() < 0.005
    assert torch.equal((got * 255).round(), (got * 255).round().clamp(0, 255))


@pytest.mark.parametrize("factor", [1, 1.25, 1.75, 2.25, 3, 4.5])
def test_zoom_agrees_with_scipy(factor: float) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    layer = torch.rand(32, 28, dtype=torch.float64)
    rows, columns = (math.ceil(size / factor) for size in layer.shape)
    top, left = (32 - rows) // 2, (28 - columns) // 2
    expected = ndimage.zoom(layer[top : top + rows, left : left + columns], factor, order=1)
    zoomed = overlays.clipped_zoom(layer[None], factor)[0]
    torch.testing.assert_close(zoomed, torch.from_numpy(expected))


def test_snow_falls_in_the_stated_directions() -> None:
    """A flake leaves its trace below itself, to both sides of the vertical."""
    point = torch.zeros(2, 21, 21, dtype=torch.float64)
    point[:, 10, 10] = 1
    left, right = motion_blur(point, torch.tensor([-135.0, -45.0]), 4, 3)
    for layer, side in ((left, 1), (right, -1)):
        assert all(layer[10 + i, 10 + side * i] > 0 for i in range(1, 5))
        assert layer[:10].sum() == 0


def test_one_pixel_by_hand() -> None:
    pixel = torch.tensor([[[[100, 250]]]], dtype=torch.uint8)
    assert apply_gaussian_noise(pixel, torch.ones(1, 1, 1, 2), 0.1).tolist() == [[[[125, 255]]]]
    white = torch.full((1, 3, 1, 1), 200, dtype=torch.uint8)
    assert apply_frost(pixel[..., :1], white, 0.75, 0.45).item() == 165
    dark = torch.full((1, 1, 1, 1), 102, dtype=torch.uint8)
    assert apply_snow(dark, torch.zeros(1, 1, 1), 0.5).item() == 191  # (0.4 + 1.1) / 2


def test_interpolation_by_hand() -> None:
    row = torch.tensor([[[0, 100, 200]]], dtype=torch.uint8)
    larger = overlays.resize(row, (1, 6), mode="linear")
    assert larger.tolist() == [[[0, 25, 75, 125, 175, 200]]]
    weights = overlays.interpolation(torch.tensor([0.25, -1.0]), 3)
    assert weights.tolist() == [[0.75, 0.25, 0], [1, 0, 0]]
    ramp = torch.arange(4.0, dtype=torch.float64).expand(1, 4, 4)
    zoomed = overlays.clipped_zoom(ramp, 2.0)[0, 0]
    assert zoomed.tolist() == pytest.approx([1, 4 / 3, 5 / 3, 2])


def test_blur_by_hand() -> None:
    point = torch.zeros(1, 1, 4, dtype=torch.float64)
    point[..., 3] = 1
    blurred = motion_blur(point, torch.tensor([0.0]), 1, 1.0)[0, 0]
    assert blurred.tolist() == pytest.approx([0, 0.0777, 0.4259, 1], abs=1e-4)


def test_snow_by_hand() -> None:
    image = torch.tensor([51, 102, 204], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 1, 2)
    layer = torch.tensor([[[0.0, 0.1]]], dtype=torch.float64)
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.8
    expected = [
        int(255 * (0.9 * x + 0.1 * max(x, 1.5 * grey + 0.5) + 0.1)) for x in (0.2, 0.4, 0.8)
    ]
    # Turned by 180 degrees the flake is in the other pixel, so both get it.
    assert apply_snow(image, layer, 0.9)[0].tolist() == [[[v, v]] for v in expected]


def test_snow_is_added_as_it_is_and_turned() -> None:
    layer = torch.tensor([[[0.1, 0.2, 0.0], [0.3, 0.0, 0.0]]], dtype=torch.float64)
    made = apply_snow(torch.zeros(1, 1, 2, 3, dtype=torch.uint8), layer, 1.0)
    expected = [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]
    assert made[0, 0].tolist() == [[int(255 * value) for value in row] for row in expected]


def test_snow_falls_at_angles_uniform_about_the_vertical(monkeypatch: pytest.MonkeyPatch) -> None:
    angles = []

    def spy(normal: Tensor, angle: Tensor, table: Constants, severity: int) -> Tensor:
        angles.append(angle)
        return snow_layer(normal, angle, table, severity)

    monkeypatch.setattr(corruptions, "snow_layer", spy)
    corrupt(torch.zeros(2000, 1, 8, 8, dtype=torch.uint8), "snow", 1, seed=0)
    drawn = torch.cat(angles)
    assert len(drawn) == 2000
    assert float(drawn.min()) >= -135
    assert float(drawn.max()) < -45
    assert ((torch.histc(drawn.float(), 9, -135, -45) - 2000 / 9).abs() < 5 * 15).all()


def test_frost_by_hand() -> None:
    image = torch.tensor([10, 200], dtype=torch.uint8).view(1, 1, 1, 2)
    frost = torch.tensor([100, 150, 250], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 1, 2)
    grey = 0.299 * 100 + 0.587 * 150 + 0.114 * 250
    expected = [int(0.75 * 10 + 0.45 * grey), int(0.75 * 200 + 0.45 * grey)]
    assert apply_frost(image, frost, 0.75, 0.45).flatten().tolist() == expected
    colour = apply_frost(image.expand(1, 3, 1, 2), frost, 1, 0.4)
    assert colour[0, :, 0].tolist() == [[50, 240], [70, 255], [110, 255]]


@pytest.mark.parametrize("name", TABLES)
def test_frost_crops_are_windows_of_the_fitted_overlays(name: str) -> None:
    table = TABLES[name]
    fitted = fit_overlays(frosts()[: table.overlays], (32, 28), table.shrink)
    places = torch.rand(40, 3, dtype=torch.float64)
    crops = crop_overlays(fitted, places, (32, 28))
    for crop, place in zip(crops, places.tolist(), strict=True):
        overlay = fitted[int(place[0] * table.overlays)]
        top = int(place[1] * (overlay.shape[1] - 32))
        left = int(place[2] * (overlay.shape[2] - 28))
        assert torch.equal(crop, overlay[:, top : top + 32, left : left + 28])


def test_cifar_frost_takes_five_overlays_and_every_fifth_pixel() -> None:
    black = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    flat = [torch.full((3, 200, 200), 40 * i, dtype=torch.uint8) for i in range(1, 7)]
    levels = (corrupt(black, "frost", 5, seed=0, overlays=flat) / 0.45 / 40).round()
    assert levels.unique().tolist() == [1, 2, 3, 4, 5]
    everywhere = corrupt(black, "frost", 5, seed=0, overlays=flat, constants="imagenet-c")
    assert (everywhere / 0.75 / 40).round().unique().tolist() == [1, 2, 3, 4, 5, 6]
    overlay = noise_images(3, 160, 170)
    assert torch.equal(fit_overlays([overlay], (32, 32), 0.2)[0], overlay[:, 2::5, 2::5])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(63, 105), (350, 527), (386, 580), (97, 301)])
def test_resize_agrees_with_opencv(mode: overlays.Mode, size: tuple[int, int]) -> None:
    cv2 = pytest.importorskip("cv2", exc_type=ImportError)
    image = noise_images(3, 315, 527)
    method = {"linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}[mode]
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    expected = torch.from_numpy(cv2.resize(pixels, size[::-1], interpolation=method))
    difference = (overlays.resize(image, size, mode=mode).int() - expected.permute(2, 0, 1)).abs()
    # OpenCV calculates in whole numbers: 11 bits, fewer in some versions' linear mode.
    assert difference.max() <= 1
    assert difference.double().mean() < {"linear": 0.2, "cubic": 0.03}[mode]


@pytest.mark.parametrize("size", [(315, 560), (350, 527), (323, 485)])
def test_shrunken_overlays_agree_with_opencv(size: tuple[int, int]) -> None:
    cv2 = pytest.importorskip("cv2", exc_type=ImportError)
    image = noise_images(3, *size)
    expected = cv2.resize(image.permute(1, 2, 0).contiguous().numpy(), (0, 0), fx=0.2, fy=0.2)
    got = fit_overlays([image], (32, 32), 0.2)[0]
    assert torch.equal(got, torch.from_numpy(expected).permute(2, 0, 1))


@pytest.mark.parametrize(("size", "made"), [((32, 32), (347, 616)), ((630, 32), (693, 1232))])
def test_enlarged_overlays_agree_with_opencv(size: tuple[int, int], made: tuple[int, int]) -> None:
    cv2 = pytest.importorskip("cv2", exc_type=ImportError)
    image = noise_images(3, 315, 560)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    expected = cv2.resize(pixels, made[::-1], interpolation=cv2.INTER_CUBIC)
    got = fit_overlays([image], size, None)[0]
    assert got.shape == (3, *made)
    assert (got.int() - torch.from_numpy(expected).permute(2, 0, 1)).abs().max() <= 1


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_stated_scale(name: str, severity: int) -> None:
    images = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = corrupt(images, "gaussian_noise", severity, seed=0, constants=name)
    inside = noisy[(noisy > 0) & (noisy < 255)].double()
    # Within a known range of quantiles: those of a normal variable that was not clipped.
    share = ((noisy.double() + 0.5) / 255 - 128 / 255).abs() < TABLES[name].noise[severity - 1]
    assert abs(float(share.double().mean()) - 0.6827) < 0.01
    assert abs(float(inside.mean()) - 127.5) < 1


def test_noise_by_hand_cuts_off() -> None:
    image = torch.tensor([100, 3], dtype=torch.uint8).view(1, 1, 1, 2)
    normal = torch.tensor([0.5, -9.0]).view(1, 1, 1, 2)
    assert apply_gaussian_noise(image, normal, 0.06).flatten().tolist() == [107, 0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_gets_the_same_whatever_follows(kind: str, channels: int) -> None:
    images = noise_images(150, channels, 32, 32)
    whole = corrupt(images, kind, 4, seed=5, overlays=frosts())
    assert torch.equal(whole[:70], corrupt(images[:70], kind, 4, seed=5, overlays=frosts()))
    assert torch.equal(whole[:3], corrupt(images[:3], kind, 4, seed=5, overlays=frosts()))


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_images_differ_and_the_global_generator_is_left_alone(kind: str) -> None:
    images = torch.full((70, 1, 28, 28), 90, dtype=torch.uint8)
    state = torch.get_rng_state()
    first = corrupt(images, kind, 3, seed=0, overlays=frosts())
    again = corrupt(images, kind, 3, seed=0, overlays=frosts())
    other = corrupt(images, kind, 3, seed=1, overlays=frosts())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.flatten(1).unique(dim=0)) == 70


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_takes_images_further_away(kind: str, name: str) -> None:
    images = noise_images(64, 3, 32, 32) // 2 + 32
    distances = []
    for severity in SEVERITIES:
        made = corrupt(images, kind, severity, seed=0, constants=name, overlays=frosts())
        distances.append(float((made.double() - images.double()).pow(2).mean()))
    # Snow 4 and 5 of CIFAR-C are equally strong by this measure; no other step goes back.
    assert all(later > 0.8 * before for before, later in itertools.pairwise(distances))
    assert distances[-1] > 1.5 * distances[0]


def test_severity_zero_is_the_image() -> None:
    images = noise_images(2, 3, 32, 32)
    assert torch.equal(corrupt(images, "frost", 0, seed=0), images)


def test_grey_and_colour_agree_on_grey_images() -> None:
    images = noise_images(4, 1, 32, 32)
    grey = [torch.full((3, 320, 400), 123, dtype=torch.uint8)] * 6
    for kind in ("snow", "frost"):
        one = corrupt(images, kind, 3, seed=2, overlays=grey)
        three = corrupt(images.expand(4, 3, 32, 32), kind, 3, seed=2, overlays=grey)
        assert (three.int() - one.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"kind": "fog"}, ValueError, "kind must be one of 'snow', 'frost', 'gaussian_noise'"),
        ({"severity": 6}, ValueError, "severity must be an integer from 0 to 5, got 6"),
        ({"severity": 1.5}, TypeError, "severity must be an integer"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0, got -1"),
        ({"constants": "cifar"}, ValueError, "did you mean 'cifar-c'"),
        ({"images": torch.zeros(2, 3, 32, 32)}, ValueError, "images must be uint8"),
        ({"images": noise_images(2, 32, 32, 3)}, ValueError, r"got uint8 \[2, 32, 32, 3\]"),
        ({"kind": "frost", "overlays": []}, ValueError, "overlays must hold at least one"),
        (
            {"kind": "frost", "overlays": [torch.zeros(3, 90, 90, dtype=torch.uint8)]},
            ValueError,
            r"overlays\[0\] is 18 x 18 after resizing and does not cover images of 32 x 32",
        ),
        (
            {"kind": "frost", "overlays": [torch.zeros(90, 90, 3, dtype=torch.uint8)]},
            ValueError,
            r"overlays\[0\] must be uint8 \[3, h, w\], got uint8 \[90, 90, 3\]",
        ),
    ],
)
def test_errors_name_the_argument(
    change: dict[str, object], error: type[Exception], words: str
) -> None:
    arguments = {"images": noise_images(2, 3, 32, 32), "kind": "snow", "severity": 1, "seed": 0}
    with pytest.raises(error, match=words):
        corrupt(**(arguments | change))  # type: ignore[arg-type]


def write_overlays(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder.mkdir()
    for index, name in enumerate(OVERLAYS):
        colour = (index, 100, 200, 7) if name.endswith("png") else (index, 100, 200)
        mode = "RGBA" if name.endswith("png") else "RGB"
        buffer = io.BytesIO()
        image.new(mode, (400 + index, 300), colour).save(buffer, name[-3:].replace("jpg", "jpeg"))
        (folder / name).write_bytes(buffer.getvalue())


def test_overlays_are_read_as_colour_without_transparency(tmp_path: Path) -> None:
    write_overlays(tmp_path / "frost")
    overlays = load_overlays(tmp_path)
    assert [tuple(overlay.shape) for overlay in overlays] == [(3, 300, 400 + i) for i in range(6)]
    for index, overlay in enumerate(overlays):
        wanted = torch.tensor([index, 100, 200]).view(3, 1, 1)
        assert (overlay.int() - wanted).abs().max() <= (0 if index < 3 else 3)


def test_damaged_overlay_is_named(tmp_path: Path) -> None:
    write_overlays(tmp_path / "frost")
    path = tmp_path / "frost" / "frost2.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"frost2.png: cannot be read as a picture"):
        load_overlays(tmp_path)
    path.unlink()
    with pytest.raises(MissingDataError, match=r"frost2.png: no such picture"):
        load_overlays(tmp_path)


@pytest.fixture(scope="session")
def cifar_images(real_data) -> Tensor:  # type: ignore[no-untyped-def]
    from gflowout.data.images import load_images

    return load_images("cifar10", "test", real_data("cifar10")).images


@pytest.fixture(scope="session")
def real_frosts(real_data) -> list[Tensor]:  # type: ignore[no-untyped-def]
    return load_overlays(real_data("frost"))


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_parity_with_imagecorruptions(
    kind: str, severity: int, cifar_images: Tensor, real_frosts: list[Tensor]
) -> None:
    pytest.importorskip("imagecorruptions", exc_type=ImportError)
    from corruption_parity import oracle, ours

    images = cifar_images[:16]
    expected = oracle(images, kind, severity, seed=11)
    difference = (ours(images, kind, severity, 11, real_frosts).int() - expected.int()).abs()
    assert difference.max() <= 1
    assert difference.double().mean() < 0.002


@pytest.mark.parametrize("kind", KINDS)
def test_parity_in_distribution(kind: str, cifar_images: Tensor, real_frosts: list[Tensor]) -> None:
    """Mean and spread of each image, with numbers of our own, within four standard errors."""
    pytest.importorskip("imagecorruptions", exc_type=ImportError)
    from corruption_parity import oracle

    images = cifar_images[:100]
    expected = oracle(images, kind, 3, seed=0).double().flatten(1)
    own = corrupt(images, kind, 3, seed=0, constants="imagenet-c", overlays=real_frosts)
    own = own.double().flatten(1)
    for statistic in (torch.mean, torch.std):
        difference = statistic(own, 1) - statistic(expected, 1)
        error = difference.std() / len(images) ** 0.5
        assert difference.mean().abs() < 4 * error


def test_constants_are_the_published_ones() -> None:
    """Those of make_cifar_c.py and of the package imagecorruptions, written out once more."""
    cifar, imagenet = TABLES["cifar-c"], TABLES["imagenet-c"]
    assert cifar.noise == (0.04, 0.06, 0.08, 0.09, 0.10)
    assert cifar.frost == ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    assert [astuple(one) for one in cifar.snow] == [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ]
    assert imagenet.noise == (0.08, 0.12, 0.18, 0.26, 0.38)
    assert imagenet.frost == ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    assert [astuple(one) for one in imagenet.snow] == [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ]
