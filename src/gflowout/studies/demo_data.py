"""The demo's data: scikit-learn's digits, rotated digits, and patches of photographs.

All of it ships with scikit-learn. Images are rows of 64 grey values from 0 to 16, as scikit-learn
has them, until :meth:`Split.normalise`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.optional import require

require("sklearn", extra="demo", purpose="gflowout demo")

SIDE = 8
WHITE = 16.0
CLASSES = 10
TRAIN_SIZE, VALIDATION_SIZE = 1000, 297
MAX_TURN = 90.0


@dataclass(frozen=True)
class Split:
    """Digits of one seed, in three parts that share no image.

    Attributes:
        train: Images [1000, 64] and labels [1000].
        validation: Images [297, 64] and labels [297].
        test: Images [500, 64] and labels [500].
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def normalise(self, images: Tensor) -> Tensor:
        """Shift and scale by the mean and deviation of all pixels of the training part."""
        deviation, mean = torch.std_mean(self.train[0])
        return (images - mean) / deviation


def split(seed: int) -> Split:
    """Split the digits at random; the same seed gives the same split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.as_tensor(digits.data, dtype=torch.float32)
    labels = torch.as_tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    sizes = [TRAIN_SIZE, VALIDATION_SIZE, len(images) - TRAIN_SIZE - VALIDATION_SIZE]
    train, validation, test = ((images[part], labels[part]) for part in torch.split(order, sizes))
    return Split(train, validation, test)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate images counter-clockwise about their centre; pixels from outside are black.

    Args:
        images: [batch, 64].
        degrees: [batch].

    Returns:
        [batch, 64], interpolated bilinearly.

    Examples:
        >>> images = torch.rand(1, 64)
        >>> turned = rotate(images, torch.tensor([90.0])).reshape(8, 8)
        >>> torch.allclose(turned, images.reshape(8, 8).rot90(), atol=1e-5)
        True
    """
    angle = torch.deg2rad(degrees.to(images.dtype))
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # The grid says where each output pixel comes from, with y pointing down.
    rows = [torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)]
    squares = images.reshape(-1, 1, SIDE, SIDE)
    grid = F.affine_grid(torch.stack(rows, 1), list(squares.shape), align_corners=False)
    turned = F.grid_sample(squares, grid, padding_mode="zeros", align_corners=False)
    return turned.reshape(images.shape)


def rotated(images: Tensor, seed: int) -> Tensor:
    """Rotate every image [batch, 64] by its own angle, uniform between -90 and 90 degrees."""
    uniform = torch.rand(len(images), generator=torch.Generator().manual_seed(seed))
    return rotate(images, (2 * uniform - 1) * MAX_TURN)


def photo_patches(count: int, seed: int) -> Tensor:
    """Cut squares of 8 x 8 pixels from scikit-learn's two sample photographs, in grey.

    Args:
        count: Number of patches; half from each photograph.
        seed: The same seed gives the same places.

    Returns:
        [count, 64], from 0 (black) to 16 (white).
    """
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(seed)
    photos = [torch.tensor(photo).float().mean(-1) for photo in load_sample_images().images]
    patches = []
    for number in range(count):
        photo = photos[number % len(photos)]
        top, left = (
            int(torch.randint(size - SIDE + 1, (), generator=generator)) for size in photo.shape
        )
        patches.append(photo[top : top + SIDE, left : left + SIDE].flatten())
    return torch.stack(patches) * (WHITE / 255)
