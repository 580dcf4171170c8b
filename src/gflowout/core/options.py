"""Options of a method: a frozen dataclass, which ``wrap`` also takes in place of its name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from gflowout.core import checks
from gflowout.core.renamed import renamed


class _Keywords(type):
    """Type of the options: they take ``preset``, ``keep`` and old spellings beside their fields."""

    if not TYPE_CHECKING:  # checkers read the fields, and those below that only they see

        def __call__(cls, *args: Any, **given: Any) -> Any:
            return super().__call__(*args, **cls.resolved(given))

    @property
    def __signature__(cls) -> inspect.Signature:
        """What ``help`` and notebooks show."""
        own = [
            inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                              default=option.default, annotation=option.type)
            for option in dataclasses.fields(cls)  # type: ignore[arg-type]
        ]  # fmt: skip
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in cls.keywords()  # type: ignore[attr-defined]
        ]
        return inspect.Signature([*own, *more])


@dataclass(frozen=True)
class Options(metaclass=_Keywords):
    """Options of a method, checked when they are built: what ``wrap`` takes as its method.

    The fields are also keywords of ``wrap`` beside the name of the method. Two more keywords set
    fields: ``preset`` gives those of a preset, which other keywords override; ``keep`` is the rate
    at which units are kept, in place of the field that says so in the method's own terms.

    Examples:
        >>> import gflowout as gfo
        >>> gfo.MC(keep=0.8, draws=2)  # the fields that are not the defaults
        MC(rate=0.2, draws=2)
        >>> gfo.Contextual(preset="paper")
        Contextual(prior_keep=0.5, gain=0.01)
        >>> gfo.MC(rat=0.2)
        Traceback (most recent call last):
            ...
        TypeError: MC has no option 'rat'; its options: rate, ...; did you mean 'rate'?
    """

    if TYPE_CHECKING:
        preset: str | None = field(default=None, kw_only=True)

    ALIAS: ClassVar[str] = ""
    """Name at the top of the package."""

    KEEP: ClassVar[bool] = False
    """Whether the method has a keep or drop rate, so that it takes ``keep``."""

    STRUCTURAL: ClassVar[frozenset[str]] = frozenset()
    """Options that shape the parameters and cannot change after wrapping."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}}
    """By name of a preset, values that differ from the defaults."""

    BEFORE: ClassVar[dict[str, Any]] = {}
    """Values of options that files of earlier versions do not have, where not the defaults."""

    RENAMED: ClassVar[dict[str, str]] = {}
    """Present names of options by their old ones."""

    @classmethod
    def build(cls, method: str, preset: str | None, given: Mapping[str, Any]) -> Any:
        """Build from keywords; an option that the method does not have is an error.

        Examples:
            >>> from gflowout.methods import METHODS
            >>> METHODS["mc"].Options.build("mc", "paper", {"draws": 2})
            MC(rate=0.5, draws=2)
        """
        owner = f"method {method!r}"
        if "preset" in given:
            raise cls._no_option("preset", owner)
        return cls(**cls.resolved({"preset": preset, **given}, owner))

    @classmethod
    def resolved(cls, given: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
        """Values of fields from all keywords, those of ``preset`` included.

        ``owner`` is what errors call the method.
        """
        values = cls.translated(given, owner)
        preset = values.pop("preset", None)
        if preset is not None:
            checks.choice("preset", preset, cls.PRESETS)
            values = {**cls.PRESETS[preset], **values}
        return values

    @classmethod
    def translated(
        cls, given: Mapping[str, Any], owner: str = "", *, warn: bool = True
    ) -> dict[str, Any]:
        """Keywords without ``keep`` and old spellings: fields, and ``preset`` if it was given."""
        owner = owner or cls.ALIAS or cls.__name__
        values = renamed(given, cls.RENAMED, owner, warn=warn)
        for name in values:
            if name not in (*cls.names(), "preset"):
                raise cls._no_option(name, owner)
        keep = values.pop("keep", None)
        if keep is not None:
            checks.number("keep", keep, low=0, high=1, open_low=True)
            for name, value in cls.of_keep(keep, values).items():
                if values.get(name) is not None:
                    raise TypeError(
                        f"{owner} got keep={keep!r} and {name}={values[name]!r}, which both say "
                        "how many units are kept: give one of them"
                    )
                values[name] = value
        return values

    @classmethod
    def of_keep(cls, keep: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field that a keep rate sets, by name; ``given`` has the other options."""
        return {"prior_keep": keep}

    @classmethod
    def keywords(cls) -> list[str]:
        """Keywords that are no fields."""
        return ["keep", "preset"] if cls.KEEP else ["preset"]

    @classmethod
    def names(cls) -> list[str]:
        """Names of the options: the fields, and ``keep`` where the method has a rate."""
        fields = [option.name for option in dataclasses.fields(cls)]
        return [*fields, "keep"] if cls.KEEP else fields

    @classmethod
    def _no_option(cls, name: str, owner: str) -> TypeError:
        names = cls.names()
        return TypeError(
            f"{owner} has no option {name!r}; its options: {', '.join(names) or 'none'}"
            f"{checks.suggest(name, names)}"
        )

    def __repr__(self) -> str:
        """Show the values that are not the defaults."""
        values = [
            f"{option.name}={getattr(self, option.name)!r}"
            for option in dataclasses.fields(self)
            if getattr(self, option.name) != option.default
        ]
        return f"{self.ALIAS or type(self).__name__}({', '.join(values)})"


def dropping(keep: float) -> float:
    """Drop rate of a keep rate, without the rounding of binary fractions.

    Examples:
        >>> 1 - 0.9, dropping(0.9)
        (0.09999999999999998, 0.1)
    """
    return round(1 - keep, 15)
