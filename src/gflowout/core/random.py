"""Random generators for named purposes, derived from one seed.

Generators of different words are independent of each other, and none touches the global one.
"""

from __future__ import annotations

import hashlib

import torch

from gflowout.core import checks


def generator(seed: int, *words: str | int) -> torch.Generator:
    """Make the CPU generator that belongs to a seed and some words, such as ``"order", epoch``.

    Examples:
        >>> first, again = generator(0, "order", 3), generator(0, "order", 3)
        >>> torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=again))
        True
        >>> other = generator(0, "order", 4)
        >>> torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=other))
        False
    """
    checks.integer("seed", seed, low=0)
    text = repr((int(seed), *words)).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    # manual_seed takes 64 bits, but signed.
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def draw_seeds(count: int, generator: torch.Generator | None = None) -> list[int]:
    """Seeds for as many draws, from a generator, or else from PyTorch's own; either advances.

    Examples:
        >>> draw_seeds(2) == draw_seeds(2)
        False
        >>> first, again = (draw_seeds(2, torch.Generator().manual_seed(0)) for _ in range(2))
        >>> first == again
        True
    """
    generator = torch.default_generator if generator is None else generator
    device = generator.device
    seeds: list[int] = torch.randint(2**62, (count,), generator=generator, device=device).tolist()
    return seeds
