"""Between searches and configurations: the options of each method, and early checks of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.tuning.spaces import Choice, Space

if TYPE_CHECKING:
    from gflowout.app.config import Config
    from gflowout.tuning.results import Tuned

TEST = "test"
"""The option that tells the work function whether it may touch test data. Here it never may."""


def base_options(config: Config, methods: Sequence[str]) -> dict[str, Any]:
    """The options of a configuration for several methods, as :func:`~gflowout.tuning.tune` takes.

    Options of the configuration's own method stay with it.

    Args:
        config: The configuration.
        methods: Methods.
    """
    from gflowout.app.config import flat, with_changes

    found: dict[str, Any] = {}
    for method in methods:
        own = config.method.name == method
        each = config if own else with_changes(config, {"method": {"name": method}})
        for key, value in flat(each).items():
            found[f"{method}:{key}" if key.startswith("method.") else key] = value
    return found


def check(options: Mapping[str, Mapping[str, Any]], space: Space) -> None:
    """Refuse options and values that a method does not take, before a trial fails for it.

    Raises:
        ConfigError: One line for each problem.
    """
    from gflowout.app.config import ConfigError

    problems: dict[str, None] = {}
    for method, base in options.items():
        domains = space.of(method)
        middle = {name: domain.at(0.5) for name, domain in domains.items()}
        for name, domain in domains.items():
            values = domain.options if isinstance(domain, Choice) else (domain.low, domain.high)
            for value in values:
                try:
                    configuration({**base, **middle, name: value})
                except ConfigError as error:
                    problems |= dict.fromkeys(f"{method}: {line}" for line in error.problems)
    if problems:
        raise ConfigError(list(problems))


def configuration(options: Mapping[str, Any]) -> Config:
    """The configuration of a trial's options."""
    from gflowout.app.config import from_flat

    return from_flat({key: value for key, value in options.items() if key != TEST})


def write_best(tuned: Tuned, folder: str | Path) -> list[Path]:
    """Write ``best-METHOD.yaml`` for each method that has a good trial.

    Examples:
        >>> import tempfile
        >>> from gflowout.tuning import Trial, Tuned, space
        >>> options = {"data.source": "mnist", "method.name": "mc"}
        >>> trial = Trial("mc", 0, {"fit.lr": 0.01}, 0.3, 1.0, None, "run0")
        >>> searched = space("fit.lr=0.01,0.1")
        >>> tuned = Tuned((trial,), {"mc": options}, searched, "valid/nll", "minimize")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_best(tuned, folder)]
        ['best-mc.yaml']
    """
    from gflowout.app.config import write

    paths = []
    for method in tuned.best:
        paths.append(Path(folder) / f"best-{method}.yaml")
        write(configuration(tuned.options(method)), paths[-1])
    return paths
