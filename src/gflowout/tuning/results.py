"""The result of a search: trials, the best of each method, tables, files and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflowout.core.optional import require
from gflowout.core.text import aligned, duration
from gflowout.tuning.spaces import Choice, Numbers, Space, yaml_dialect

if TYPE_CHECKING:
    import pandas as pd

    from gflowout.app.config import Config

TEST = "test"  # option that tells the work function whether it may use test data: here never


@dataclass(frozen=True)
class Trial:
    """One trial.

    Args:
        method: Of which method.
        number: From 0, in the order in which the search proposed them.
        options: Those that were searched.
        score: On validation data; ``None`` if the trial failed.
        seconds: How long it took.
        error: Why it failed, or ``None``.
        run: Id of its run; its record is named so.

    Examples:
        >>> Trial("mc", 0, {"fit.lr": 0.01}, 0.31, 12.5, None, "tune-mnist-mc-s0").score
        0.31
    """

    method: str
    number: int
    options: Mapping[str, Any]
    score: float | None
    seconds: float
    error: str | None
    run: str


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Args:
        trials: All trials, by method and number.
        base: By method, the options that were not searched.
        space: What was searched.
        score: Name of the score.
        direction: ``"minimize"`` or ``"maximize"``.

    Examples:
        >>> from gflowout.tuning import space
        >>> trials = tuple(
        ...     Trial("mc", number, {"fit.lr": lr}, score, 1.0, None, f"run{number}")
        ...     for number, (lr, score) in enumerate([(0.001, 0.4), (0.01, 0.3)])
        ... )
        >>> tuned = Tuned(trials, {"mc": {}}, space("fit.lr=0.001,0.01"), "valid/nll", "minimize")
        >>> tuned.best["mc"].options
        {'fit.lr': 0.01}
    """

    trials: tuple[Trial, ...]
    base: Mapping[str, Mapping[str, Any]]
    space: Space
    score: str
    direction: str

    @property
    def methods(self) -> list[str]:
        """The methods, in the order given."""
        return list(self.base)

    @property
    def best(self) -> dict[str, Trial]:
        """The best trial of each method that has a good one; of equal ones the first."""
        sign = 1 if self.direction == "minimize" else -1
        best: dict[str, tuple[float, int, Trial]] = {}
        for trial in self.trials:
            if trial.score is not None:
                ranked = (sign * trial.score, trial.number, trial)
                best[trial.method] = min(
                    best.get(trial.method, ranked), ranked, key=lambda r: r[:2]
                )
        return {method: best[method][-1] for method in self.methods if method in best}

    @property
    def failed(self) -> list[Trial]:
        """Trials without a score."""
        return [trial for trial in self.trials if trial.score is None]

    def of(self, method: str) -> list[Trial]:
        """The trials of a method."""
        return [trial for trial in self.trials if trial.method == method]

    def options(self, method: str) -> dict[str, Any]:
        """All options of the best trial of a method, searched or not.

        Raises:
            ValueError: If all trials of the method failed.
        """
        best = self.best
        if method not in best:
            raise ValueError(f"method must be one with a good trial ({list(best)}), got {method!r}")
        return {**self.base[method], **best[method].options}

    def spread(self, method: str) -> dict[str, float]:
        """Best, median and worst score of a method's trials, and how many have one."""
        scores = sorted(trial.score for trial in self.of(method) if trial.score is not None)
        if self.direction == "maximize":
            scores.reverse()
        if not scores:
            return {"best": math.nan, "median": math.nan, "worst": math.nan, "trials": 0}
        middle = statistics.median(scores)
        return {"best": scores[0], "median": middle, "worst": scores[-1], "trials": len(scores)}

    def table(self) -> str:
        """A row per method: the best trial, its options, and the spread."""
        rows = [["method", "trials", "failed", "best", "median", "worst", "time", "best options"]]
        for method in self.methods:
            spread, trials = self.spread(method), self.of(method)
            scores = [f"{spread[name]:.4f}" for name in ("best", "median", "worst")]
            seconds = duration(sum(trial.seconds for trial in trials))
            options = self.best[method].options if method in self.best else {}
            shown = ", ".join(f"{name}={_shown(value)}" for name, value in options.items()) or "-"
            failed = len(trials) - int(spread["trials"])
            rows.append([method, str(len(trials)), str(failed), *scores, seconds, shown])
        return "\n".join([f"{self.score} ({self.direction}d)", *aligned(rows)])

    def listing(self) -> str:
        """A row per trial."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.options))
        rows = [["method", "trial", self.score, "time", *names, ""]]
        for trial in self.trials:
            score = "-" if trial.score is None else f"{trial.score:.4f}"
            values = [_shown(trial.options.get(name, "")) for name in names]
            best = "best" if self.best.get(trial.method) == trial else ""
            first = [trial.method, str(trial.number), score, duration(trial.seconds)]
            rows.append([*first, *values, trial.error or best])
        return "\n".join(aligned(rows))

    def to_frame(self) -> pd.DataFrame:
        """A row per trial, with a column per option."""
        pandas = require("pandas", extra="studies", purpose="a table of trials")
        rows = [{**vars(trial), **trial.options} for trial in self.trials]
        table: pd.DataFrame = pandas.DataFrame(rows).drop(columns="options", errors="ignore")
        return table

    def to_yaml(self) -> str:
        """The space, and for each method the best options, the spread and all trials."""
        methods: dict[str, dict[str, Any]] = {}
        for method in self.methods:
            best = self.best.get(method)
            methods[method] = {
                "best": dict(best.options) if best else None,
                "run": best.run if best else None,
                "spread": self.spread(method),
                "trials": [],
            }
            for trial in self.of(method):
                row = {"score": trial.score, "seconds": trial.seconds, "options": {**trial.options}}
                error = {} if trial.error is None else {"error": trial.error}
                methods[method]["trials"].append(row | error)
        head = {"score": self.score, "direction": self.direction, "space": self.space.lines()}
        return str(yaml_dialect().text({**head, "methods": methods}))

    def plot(self, path: str | Path) -> None:
        """Draw the score against each option, one colour per method, into a file."""
        require("matplotlib", extra="demo", purpose="a plot of a search")
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(name for trial in self.trials for name in trial.options))
        figure = Figure(figsize=(3.6 * len(names), 3.4), layout="constrained")
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        best = self.best
        for axis, name in zip(axes, names, strict=True):
            domains = [self.space.of(method).get(name) for method in self.methods]
            choices = [domain for domain in domains if isinstance(domain, Choice)]
            labels = list(dict.fromkeys(_shown(value) for c in choices for value in c.options))
            if labels:  # at equal distances, also if they are numbers
                axis.set_xticks(range(len(labels)), labels)
                axis.set_xlim(-0.5, len(labels) - 0.5)
            elif any(isinstance(domain, Numbers) and domain.log for domain in domains):
                axis.set_xscale("log")
            for place, method in enumerate(self.methods):
                scored = (trial for trial in self.of(method) if trial.score is not None)
                trials = [trial for trial in scored if name in trial.options]
                values = [trial.options[name] for trial in trials]
                x = [labels.index(_shown(value)) for value in values] if labels else values
                y = [trial.score for trial in trials]
                colour = f"C{place % 10}"
                axis.scatter(x, y, s=22, alpha=0.7, color=colour, label=method)
                if trials:
                    ring = trials.index(best[method])
                    axis.scatter(x[ring], y[ring], s=110, facecolors="none", edgecolors=colour)
            axis.set_xlabel(name)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(self.score)
        axes[0].legend(frameon=False)
        figure.savefig(path, dpi=120)


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


def configuration(options: Mapping[str, Any]) -> Config:
    """The configuration of a trial's options."""
    from gflowout.app.config import from_flat

    return from_flat({key: value for key, value in options.items() if key != TEST})


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
