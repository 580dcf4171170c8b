"""A progress bar over the epochs of all chains, as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gflowout.core.optional import require
from gflowout.integrations.sklearn.chains import Tell


@contextmanager
def progress(chains: int, show: bool) -> Iterator[Callable[[int], Tell]]:
    """Give what makes, for the number of a chain, the listener to its epochs.

    Args:
        chains: How many there will be.
        show: Whether to show anything.
    """
    if not show:
        yield lambda number: lambda epochs, history: None
        return
    rich = require("rich.progress", extra="sklearn", purpose="verbose=True")
    with rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=12),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    ) as bar:
        task = bar.add_task("training", total=chains)

        def listener(number: int) -> Tell:
            def tell(epochs: int, history: list[dict[str, float]]) -> None:
                done = number + len(history) / epochs
                text = f"chain {number + 1}/{chains} {describe(epochs, history)}"
                bar.update(task, completed=done, description=text)

            return tell

        yield listener
        bar.update(task, completed=chains)


def describe(epochs: int, history: list[dict[str, float]]) -> str:
    """Where a training is.

    Examples:
        >>> describe(9, [{"train_nll": 0.5, "valid_nll": 0.4}, {"train_nll": 0.3}])
        'epoch 2/9 loss 0.300 valid 0.400 (best 0.400)'
    """
    text = f"epoch {len(history)}/{epochs} loss {history[-1]['train_nll']:.3f}"
    valid = [one["valid_nll"] for one in history if "valid_nll" in one]
    return text + (f" valid {valid[-1]:.3f} (best {min(valid):.3f})" if valid else "")
