"""The methods by name. A new one is a file of the same outline and a line here."""

from __future__ import annotations

from gflowout.core.method import METHODS, Losses, Method, Options
from gflowout.methods.combined import Combined
from gflowout.methods.concrete import ConcreteDropout
from gflowout.methods.contextual import ContextualDropout
from gflowout.methods.gates import StochasticGates
from gflowout.methods.gflowout import GFlowOut
from gflowout.methods.id_gflowout import IDGFlowOut
from gflowout.methods.masksembles import Masksembles
from gflowout.methods.mc import MCDropout
from gflowout.methods.none import NoDropout
from gflowout.methods.variational import VariationalDropout

METHODS.update(
    (method.name, method)
    for method in (
        GFlowOut,
        IDGFlowOut,
        Combined,
        MCDropout,
        ConcreteDropout,
        ContextualDropout,
        VariationalDropout,
        StochasticGates,
        Masksembles,
        NoDropout,
    )
)

__all__ = [
    "METHODS",
    "Combined",
    "ConcreteDropout",
    "ContextualDropout",
    "GFlowOut",
    "IDGFlowOut",
    "Losses",
    "MCDropout",
    "Masksembles",
    "Method",
    "NoDropout",
    "Options",
    "StochasticGates",
    "VariationalDropout",
]
