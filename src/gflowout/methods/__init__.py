"""The methods by name. A new one is a file of the same outline and an import here."""

from __future__ import annotations

from gflowout.core.method import METHODS, Losses, Method, Options

# The order of METHODS.
# isort: off
from gflowout.methods.gflowout import GFlowOut as GFlowOut
from gflowout.methods.id_gflowout import IDGFlowOut as IDGFlowOut
from gflowout.methods.combined import Combined as Combined
from gflowout.methods.mc import MCDropout as MCDropout
from gflowout.methods.concrete import ConcreteDropout as ConcreteDropout
from gflowout.methods.contextual import ContextualDropout as ContextualDropout
from gflowout.methods.variational import VariationalDropout as VariationalDropout
from gflowout.methods.gates import StochasticGates as StochasticGates
from gflowout.methods.masksembles import Masksembles as Masksembles
from gflowout.methods.modes import Modes as Modes
from gflowout.methods.none import NoDropout as NoDropout
# isort: on

_KINDS = [kind for kind in globals().values() if isinstance(kind, type) and hasattr(kind, "name")]
METHODS.update((kind.name, kind) for kind in _KINDS if issubclass(kind, Method))

__all__ = ["METHODS", "Losses", "Method", "Options", *(kind.__name__ for kind in _KINDS)]
