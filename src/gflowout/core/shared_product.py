"""A lazily evaluated masked batch: the next linear layer applies the masks to its weights.

One batch under many masks, each shared by the whole batch, is a tall matrix: draws x examples rows.
A linear layer need not read it. It can multiply its weights with the masks, and then one product of
the batch with all these weights gives the outputs of all draws. Any other operation gets the tall
matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten

_IN_CACHE = 2**17
"""Elements of masked weights that are made at a time: half a megabyte in single precision."""


class SharedProduct(Tensor):
    """A batch [batch, units] times masks [draws, units]: [draws * batch, units], without gradient.

    Examples:
        >>> batch, masks = torch.ones(2, 3), torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        >>> product = SharedProduct(batch, masks)
        >>> product.shape
        torch.Size([4, 3])
        >>> torch.nn.functional.linear(product, torch.eye(3)[:2]).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
        >>> (product + 0).sum(0).tolist()
        [2.0, 2.0, 4.0]
    """

    batch: Tensor
    masks: Tensor
    value: Tensor | None
    """The product itself, once something has asked for it; from then on all that counts."""

    @staticmethod
    def __new__(cls, batch: Tensor, masks: Tensor) -> SharedProduct:
        """Make a tensor without storage that knows its factors."""
        shape = (len(masks) * len(batch), batch.shape[1])
        product: SharedProduct = Tensor._make_wrapper_subclass(
            cls, shape, dtype=batch.dtype, device=batch.device
        )
        product.batch, product.masks, product.value = batch, masks, None
        return product

    def __init__(self, batch: Tensor, masks: Tensor) -> None:
        super().__init__()

    def written_out(self) -> Tensor:
        """The product itself: always the same tensor, which may be changed in place."""
        if self.value is None:
            self.value = (self.batch * self.masks.unsqueeze(1)).flatten(0, 1)
        return self.value

    def linear(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Outputs of a linear layer with ``weight`` [outputs, units], [draws * batch, outputs]."""
        draws, (rows, units), outputs = len(self.masks), self.batch.shape, len(weight)
        result = self.batch.new_empty(draws, rows, outputs)
        some = max(1, min(draws, _IN_CACHE // (outputs * units)))
        masked = self.batch.new_empty(some, outputs, units)
        products = self.batch.new_empty(rows, some * outputs)
        for start in range(0, draws, some):
            masks, into = self.masks[start : start + some], result[start : start + some]
            if len(masks) < some:
                masked, products = masked[: len(masks)], products[:, : len(masks) * outputs]
            torch.mul(weight, masks.unsqueeze(1), out=masked)
            torch.mm(self.batch, masked.flatten(0, 1).t(), out=products)
            parts = products.view(rows, len(masks), outputs).transpose(0, 1)
            if bias is None:
                into.copy_(parts)
            else:
                torch.add(parts, bias, out=into)
        return result.flatten(0, 1)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Mask the weights of a linear layer; give all other operations the product itself."""
        if func is _aten.addmm.default and not kwargs:
            bias, product, weight = args
            if _pays(product, weight) and bias.dim() == 1 and type(bias) is not cls:
                return product.linear(weight.t(), bias)
        if func is _aten.mm.default:
            product, weight = args
            if _pays(product, weight):
                return product.linear(weight.t(), None)
        args, kwargs = tree_map_only(cls, cls.written_out, (args, kwargs or {}))
        return func(*args, **kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _pays(product: Any, weight: Any) -> bool:
    """Whether masking the weights is less work than masking the batch."""
    if not isinstance(product, SharedProduct) or isinstance(weight, SharedProduct):
        return False
    return product.value is None and bool(weight.shape[1] <= len(product.batch))
