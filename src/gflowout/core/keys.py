"""Names in the state of a wrapped model: the backbone's own as they are, ours under ``gflowout.``.

Inside, the backbone is a submodule like the method and the likelihood. Knows names only.
"""

from __future__ import annotations

PREFIX = "gflowout"
"""Where a wrapped model's state_dict keeps what wrapping added."""


def outer(key: str) -> str:
    """The name that users see, for a name inside the model.

    Examples:
        >>> outer("backbone.fc.weight"), outer("method.prior")
        ('fc.weight', 'gflowout.method.prior')
    """
    head, _, rest = key.partition(".")
    return rest if head == "backbone" else f"{PREFIX}.{key}"


def inner(key: str) -> str:
    """The name inside the model, for a name that users see.

    Examples:
        >>> inner("fc.weight"), inner("gflowout.method.prior")
        ('backbone.fc.weight', 'method.prior')
    """
    head, _, rest = key.partition(".")
    return rest if head == PREFIX else f"backbone.{key}"
