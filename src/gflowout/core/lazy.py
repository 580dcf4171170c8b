"""Properties that are computed once, safe in threads and forks."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801
        """:class:`functools.cached_property` without the lock that it has before Python 3.12.

        All objects of a class share that lock: a process that is forked while another thread holds
        it waits for ever. Without it, two threads may compute the same value.
        """

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            self.lock = nullcontext()
