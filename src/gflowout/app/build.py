"""Build the backbone and the wrapped model that a configuration describes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from gflowout.app.config import BackboneConfig, Config, ConfigError
from gflowout.app.preprocess import Problem
from gflowout.backbones import MLP, ResNet18
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.model import MaskedModel
from gflowout.core.wrap import wrap
from gflowout.methods import METHODS

Backbone = MLP | ResNet18


def backbone_name(config: BackboneConfig, problem: Problem) -> str:
    """The backbone that ``"auto"`` stands for."""
    if config.name != "auto":
        return config.name
    return "resnet18" if len(problem.shape) == 3 and problem.shape[0] == 3 else "mlp"


def backbone(config: BackboneConfig, problem: Problem) -> Backbone:
    """A network with random weights of the global random state.

    Raises:
        ConfigError: If it does not fit the data.
    """
    shape, outputs = problem.shape, problem.target.outputs
    if backbone_name(config, problem) == "mlp":
        return MLP((int(torch.Size(shape).numel()), *config.hidden, outputs))
    if len(shape) != 3:
        raise ConfigError(
            [f"backbone.name resnet18 takes images, {problem.source!r} is a table: take mlp"]
        )
    return to_fastest_format(ResNet18(outputs, config.width, config.order, in_channels=shape[0]))


def model(config: Config, problem: Problem, example: Tensor) -> MaskedModel:
    """The wrapped model of a configuration; the global random state is left alone.

    Args:
        config: The configuration; weights follow from its seed.
        problem: What it takes and gives.
        example: Two inputs, as the network takes them.

    Raises:
        ConfigError: If sites or options do not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = backbone(config.backbone, problem)
        sites: Any = config.backbone.sites
        if sites is None:
            sites = list(network.sites)
        try:
            return wrap(
                network,
                config.method.name,
                sites,
                likelihood=problem.target.build(),
                example=(example,),
                preset=config.method.preset,
                **method_options(config, problem),
            )
        except (TypeError, ValueError) as error:
            raise ConfigError([f"the method cannot be put on the backbone: {error}"]) from error


def method_options(config: Config, problem: Problem) -> dict[str, Any]:
    """Options of the method, with the number of training examples where it takes that."""
    kind = METHODS[config.method.name].Options
    options = dict(config.method.options)
    if any(field.name == "train_size" for field in dataclasses.fields(kind)):
        options.setdefault("train_size", problem.train_size)
    return {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}


def parameters(model: MaskedModel) -> dict[str, int]:
    """Number of parameters of each group."""
    return {
        str(group["name"]): sum(parameter.numel() for parameter in group["params"])
        for group in model.parameter_groups()
    }
