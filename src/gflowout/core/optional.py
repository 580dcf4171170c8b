"""Optional dependencies: a missing one says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}


class MissingExtraError(ImportError):
    """An optional dependency is not installed."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say for which ``purpose`` which extra installs it.

    Raises:
        MissingExtraError: If it is not installed. An error inside an installed one passes through.

    Examples:
        >>> require("math", extra="demo", purpose="gflowout demo").sqrt(4)
        2.0
        >>> require("no_such_module", extra="demo", purpose="gflowout demo")
        Traceback (most recent call last):
            ...
        gflowout.core.optional.MissingExtraError: gflowout demo needs no_such_module: pip install
        -e '.[demo]' in a clone of gflowout
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != root:
            raise
        package = _PACKAGES.get(root, root)
        raise MissingExtraError(
            f"{purpose} needs {package}: pip install -e '.[{extra}]' in a clone of gflowout",
            name=error.name,
        ) from error
