"""Transforms: exact statistics, and every augmented image is a crop or a mirrored crop."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.data.transforms import Augment, Compose, Normalize, check_transform, flatten


def noise_images(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalized_training_images_have_mean_zero_and_deviation_one(channels: int) -> None:
    images = noise_images(1500, channels, 8, 9)
    images[:, 0] //= 3
    normalize = Normalize.fit(images)
    values = normalize(images)
    assert values.dtype == torch.float32
    by_channel = values.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(
        by_channel.mean(1), torch.zeros(channels).double(), atol=1e-5, rtol=0
    )
    deviation = by_channel.std(1, correction=0)
    torch.testing.assert_close(deviation, torch.ones(channels).double(), atol=1e-5, rtol=0)


def test_fit_is_exact_and_does_not_depend_on_the_order() -> None:
    images = noise_images(3000, 3, 4, 4)
    scaled = images.double() / 255
    fitted, turned = Normalize.fit(images), Normalize.fit(images.flip(0))
    torch.testing.assert_close(fitted.mean, scaled.mean((0, 2, 3)).float(), atol=0, rtol=1e-7)
    expected = scaled.transpose(0, 1).flatten(1).std(1, correction=0).float()
    torch.testing.assert_close(fitted.std, expected, atol=0, rtol=1e-7)
    assert torch.equal(fitted.mean, turned.mean)
    assert torch.equal(fitted.std, turned.std)


def test_mnist_has_its_known_statistics(real_data) -> None:  # type: ignore[no-untyped-def]
    from gflowout.data.images import load_images

    normalize = Normalize.fit(load_images("mnist", "train", real_data("mnist")).images)
    assert repr(normalize) == "Normalize(mean=[0.1307], std=[0.3081])"


def test_inverse_gives_the_bytes_back() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 3, 1, 1)
    normalize = Normalize(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 0.01]))
    assert torch.equal(normalize.inverse(normalize(images)), images)
    assert normalize.inverse(torch.full((1, 3, 1, 1), 1e6)).unique().tolist() == [255]


def test_a_channel_that_never_varies_becomes_zero() -> None:
    images = noise_images(10, 3, 4, 4)
    images[:, 1] = 77
    values = Normalize.fit(images)(images)
    assert values[:, 1].abs().max() < 1e-6


def test_augmented_images_are_crops_in_equal_shares() -> None:
    image = noise_images(1, 3, 8, 8)
    padded = F.pad(image, (2,) * 4)[0]
    keys = {}
    for top in range(5):
        for left in range(5):
            crop = padded[:, top : top + 8, left : left + 8]
            keys[crop.numpy().tobytes()] = (top, left, False)
            keys[crop.flip(-1).contiguous().numpy().tobytes()] = (top, left, True)
    assert len(keys) == 50
    generator = torch.Generator().manual_seed(0)
    many = Augment(pad=2)(image.expand(10_000, 3, 8, 8), generator=generator)
    found = [keys[one.numpy().tobytes()] for one in many]
    counts = [found.count(key) for key in keys.values()]
    assert max(abs(count - 200) for count in counts) < 5 * 200**0.5


def test_images_of_a_batch_stay_in_their_place() -> None:
    images = torch.arange(1, 31, dtype=torch.uint8).view(30, 1, 1, 1).expand(30, 3, 9, 7)
    made = Augment(pad=3)(images, generator=torch.Generator().manual_seed(1))
    assert made.shape == images.shape
    for value, image in enumerate(made, 1):
        assert set(image.unique().tolist()) <= {0, value}
        assert image[:, 4, 3].eq(value).all()


def test_without_padding_or_flip_nothing_changes() -> None:
    images = noise_images(20, 1, 6, 6)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(Augment(pad=0, flip=False)(images, generator=generator), images)
    only_crops = Augment(pad=1, flip=False)(images, generator=generator)
    assert (only_crops[:, :, 1:5, 1:5].flatten(1).sum(1) > 0).all()


def test_the_generator_decides() -> None:
    images = noise_images(20, 3, 32, 32)
    state = torch.get_rng_state()
    first, again, other = (
        Augment()(images, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_is_no_transform() -> None:
    images = noise_images(2, 3, 8, 8)
    with pytest.raises(TypeError, match="generator"):
        Augment()(images)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"steps must give the same .* augment="):
        Compose(Normalize.fit(images), Augment())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="transform must be callable, got 3"):
        check_transform("transform", 3)


def test_compose_is_one_after_the_other() -> None:
    images = noise_images(4, 1, 5, 5)
    normalize = Normalize.fit(images)
    made = Compose(normalize, flatten)(images)
    assert torch.equal(made, normalize(images).reshape(4, 25))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Normalize.fit(noise_images(0, 3, 4, 4)), ValueError, "at least one image"),
        (lambda: Normalize.fit(torch.rand(2, 3, 4, 4)), ValueError, "images must be uint8"),
        (
            lambda: Normalize.fit(noise_images(2, 3, 4, 4))(noise_images(2, 1, 4, 4)),
            ValueError,
            "images must have 3 channels as in fit, got 1",
        ),
        (lambda: Normalize(torch.zeros(1), torch.zeros(1)), ValueError, "std be positive"),
        (lambda: Normalize(torch.zeros(2), torch.ones(1)), ValueError, "one number per channel"),
        (lambda: Normalize(0.5, 0.5), TypeError, "mean must be a tensor"),
        (lambda: Augment(pad=-1), ValueError, "pad must be an integer >= 0, got -1"),
        (lambda: Augment(flip="yes"), TypeError, "flip must be True or False"),
    ],
)
def test_errors_name_the_argument(call, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        call()
