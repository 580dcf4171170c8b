"""Bad input: one clear error each, which names the argument, shows its value and says what fits."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import METHODS, MLP, Encoder, SharedActivation, Tokens, needed

import gflowout as gfo

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
NAN = torch.full((6, 4), float("nan"))


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def wrapped(method: str = "gflowout", **changes: Any) -> gfo.MaskedModel:
    given = {
        "backbone": MLP(),
        "sites": ["fc1", "fc2"],
        "likelihood": gfo.Categorical(3),
        "example": (X[:2],),
        **needed(method),
        **changes,
    }
    return gfo.wrap(given.pop("backbone"), method, given.pop("sites"), **given)


every_method = pytest.mark.parametrize("method", METHODS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"backbone": "net"}, TypeError, "backbone must be an nn.Module, got str"),
        ({"likelihood": "classes"}, ValueError, "likelihood must be one of.*got 'classes'"),
        ({"likelihood": gfo.Categorical}, TypeError, "likelihood must be gfo.Categorical"),
        ({"likelihood": nn.CrossEntropyLoss()}, TypeError, "likelihood must be gfo.Categorical"),
        ({"method": "gflow-out"}, ValueError, "method must be one of.*did you mean 'gflowout'"),
        ({"method": None}, ValueError, "method must be one of 'gflowout'.*got None"),
        ({"preset": "papr"}, ValueError, "preset must be one of 'paper', 'features', got 'papr'"),
        ({"rate": 0.5}, TypeError, "'gflowout' has no option 'rate'.*its options: objective,"),
        ({"temprature": 2.0}, TypeError, "'temprature'; its .*; did you mean 'temperature'"),
        ({"sites": "fc1"}, TypeError, r"sites must be a list.*got 'fc1'; write sites=\['fc1'\]"),
        ({"sites": []}, ValueError, "sites is empty: try sites=.*'input'"),
        ({"sites": {}}, ValueError, "sites is empty: try sites=.*'input'"),
        ({"sites": 3}, TypeError, "sites must be a list of submodule names.*got int"),
        ({"sites": [3]}, TypeError, "sites must hold strings, got 3"),
        (
            {"sites": ["fc3"]},
            ValueError,
            "sites: 'fc3' matches no .* of MLP; it has .*; did you mean",
        ),
        ({"sites": ["conv*"]}, ValueError, "'conv.*' matches no submodule.*it has 'fc1', 'fc2'"),
        ({"sites": None}, ValueError, r"sites=None.* has none: try sites=\['fc1'"),
        ({"sites": {"fc1": 5}}, ValueError, r"axis 5 of 'fc1' is outside its shape \[2, 8\]"),
        ({"sites": {"fc1": 0}}, ValueError, "site 'fc1'.*no axis before the units"),
        ({"example": X[:2]}, TypeError, "example must be a tuple.*dict.*got Tensor"),
        ({"example": None}, TypeError, "example must be a tuple.*got NoneType"),
        ({"example": ()}, TypeError, "example must hold at least one torch"),
        (
            {"example": (np.zeros((2, 4)),)},
            TypeError,
            "example must hold at least one torch",
        ),
        ({"example": (X[:2, :3],)}, ValueError, r"failed on `example` \(x: \[2, 3\] torch.float32"),
        (
            {"example": (X[:2].long(),)},
            ValueError,
            r"failed on `example` \(x: \[2, 4\] torch.int",
        ),
        ({"example": {"z": X[:2]}}, ValueError, "failed on `example`.*'z'"),
        (
            {"example": (X[:0],)},
            ValueError,
            r"example must hold a batch.*got 'x' of shape \[0, 4\]",
        ),
        ({"example": (X[0],)}, ValueError, r"site 'fc1' gives shape \[8\]"),
        (
            {"likelihood": gfo.Categorical(5)},
            ValueError,
            r"Categorical\(classes=5\) takes.*\[2, 3",
        ),
        ({"likelihood": gfo.MultiLabel(2)}, ValueError, r"MultiLabel\(labels=2\) takes.*\[2, 3\]"),
        ({"likelihood": gfo.Gaussian(2)}, ValueError, r"Gaussian\(dim=2.*takes.*\[2, 3\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrap(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrapped(**changes)


def test_wrap_needs_likelihood_and_example() -> None:
    with pytest.raises(TypeError, match="example"):
        gfo.wrap(MLP(), sites=["fc1"], likelihood=gfo.Categorical(3))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="likelihood"):
        gfo.wrap(MLP(), sites=["fc1"], example=(X[:2],))  # type: ignore[call-arg]


def test_wrap_refuses_a_wrapped_model() -> None:
    with pytest.raises(TypeError, match=re.escape("wrapped already: wrap gfo.unwrap(model)")):
        wrapped(backbone=wrapped())
    with pytest.raises(TypeError, match=r"model must come from gfo.wrap, got MLP"):
        gfo.unwrap(MLP())  # type: ignore[arg-type]


def test_input_is_a_name_of_its_own() -> None:
    net = MLP()
    net.input = nn.Identity()
    for sites in (["input"], ["*"]):
        with pytest.raises(ValueError, match=r"'input' stands for the input.*rename the submodule"):
            wrapped(backbone=net, sites=sites)


def test_wrap_refuses_a_backbone_that_uses_our_prefix() -> None:
    net = MLP()
    net.gflowout = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="attribute 'gflowout'"):
        wrapped(backbone=net)


POLICY_OPTIONS = [
    ("temperature", [0, -1.0, float("inf"), float("nan")], ["2", True, None]),
    ("epsilon", [-0.1, 1.1], ["0.1", None]),
    ("beta", [-1e-3, float("inf")], [None, "1"]),
    ("prior_keep", [0, 1, -0.5, 1.5], ["0.5", True]),
    ("rescale", ["inverse", "keep", None], []),
    ("log_z", ["learnt", None], []),
    ("draws", [0, -1], [1.0, True, None]),
    ("blocks", [0, -1], [1.0, True, None]),
    ("hidden", [(0,), (32, -1)], [32, "32", (8.0,), None]),
    ("history", ["none", None], []),
]
LEARNING = [
    ("objective", ["elbo", None], []),
    ("posterior", ["prior", None], []),
    ("prior_fit", ["draw", None], []),
    ("anchor", [-0.1, float("nan")], ["1", None]),
]
SPARSITY = ("sparsity", [-0.1, float("nan"), float("inf")], ["much", None, True])
ID_OPTIONS = [("group_size", [0, -1], [1.5, "8"]), ("train_size", [0, -5], [100.0, "100"])]
MC_OPTIONS = [("rate", [-0.1, 1, 1.5], ["0.5", True]), ("rescale", ["keep", None], [])]
CONTEXTUAL_OPTIONS = [
    ("prior_keep", [0, 1, -0.5, 1.5], ["0.5", True]),
    ("kl_weight", [-0.1, float("inf")], ["1", None]),
    ("family", ["normal", None], []),
    ("rescale", ["inverse", "keep", None], []),
    ("reduction", [0, -1], [1.5, "10", None]),
    ("gain", [0, -1.0, float("nan")], ["1", None]),
]
SIZE_OPTION = [("train_size", [0, -5], [100.0, "100"])]
CONCRETE_OPTIONS = [
    ("rate", [-0.1, 0, 1], ["0.5", True]),
    ("per_unit", [], [1, None, "yes"]),
    ("relaxation", [0, -0.1, float("inf")], ["0.1", None]),
    ("length_scale", [-1e-3, float("nan")], ["1", None]),
    ("dropout_regularizer", [-1.0], [True, None]),
]
VARIATIONAL_OPTIONS = [
    ("alpha", [0, -1.0, float("inf")], ["1", True]),
    ("per_unit", [], [1, None, "yes"]),
    ("kl_weight", [-0.5], ["1", None]),
]
GATES_OPTIONS = [
    ("start", [float("inf"), float("nan")], ["0.5", True, None]),
    ("noise", [0, -0.5, float("inf")], ["0.5", None]),
    ("strength", [-0.1, float("nan")], ["1", None]),
    ("shared", [], [1, None, "yes"]),
    ("predict", ["sample", None], []),
]
BOUND = ("bound", ["margin", None], [])
DRAWS = ("draws", [0, -1], [1.0, True, None])
MASKSEMBLES_OPTIONS = [
    BOUND,
    ("members", [0, -1], [2.0, None]),
    ("scale", [0.9, float("inf")], ["2", None]),
    ("rescale", ["inverse", None], []),
]
MODES_OPTIONS = [
    ("modes", [1, 0, -1], [2.0, None]),
    ("scale", [0.9, float("inf")], ["2", None]),
    ("rate", [-0.1, 1, 1.5], ["0.5", True, None]),
    ("rescale", ["kept", None], []),
    ("hidden", [(0,), (32, -1)], [32, "32", (8.0,), None]),
]
PRIOR = ("prior", ["learnt", None], [])
TABLES: dict[str, list[tuple[str, list[Any], list[Any]]]] = {
    "gflowout": [*POLICY_OPTIONS, *LEARNING, SPARSITY, BOUND, PRIOR],
    "id-gflowout": [
        *POLICY_OPTIONS,
        *ID_OPTIONS,
        SPARSITY,
        LEARNING[0],
        ("start_keep", [0.0, 1.0, -0.1, float("nan")], ["half", True]),
    ],
    "combined": [row for row in POLICY_OPTIONS if row[0] not in ("log_z", "history")]
    + [*ID_OPTIONS, BOUND],
    "mc": [*MC_OPTIONS, BOUND, DRAWS],
    "contextual": [*CONTEXTUAL_OPTIONS, BOUND, DRAWS],
    "concrete": CONCRETE_OPTIONS + SIZE_OPTION,
    "variational": VARIATIONAL_OPTIONS + SIZE_OPTION,
    "gates": GATES_OPTIONS,
    "masksembles": MASKSEMBLES_OPTIONS,
    "modes": MODES_OPTIONS,
    "none": [],
}
"""Options of every method, each with values of the wrong size and values of the wrong type."""


@pytest.mark.parametrize(
    ("method", "name", "value", "error"),
    [
        (method, name, value, error)
        for method, table in TABLES.items()
        for name, wrong_values, wrong_types in table
        for error, values in ((ValueError, wrong_values), (TypeError, wrong_types))
        for value in values
    ],
)
def test_options_out_of_range(method: str, name: str, value: Any, error: type[Exception]) -> None:
    shown = value[0] if isinstance(value, tuple) and value != (32, -1) else value
    shown = -1 if value == (32, -1) else shown
    with pytest.raises(error, match=rf"{name} must be .*got .*{re.escape(repr(shown))}"):
        wrapped(method, **{name: value})


@every_method
def test_every_option_is_covered_above(method: str) -> None:
    covered = {name for name, *_ in TABLES[method]}
    listed = vars(wrapped(method).method.options)
    assert set(listed) == covered
    with pytest.raises(TypeError, match=f"method '{method}' has no option 'nothing'") as caught:
        wrapped(method, nothing=1)
    assert all(name in str(caught.value) for name in listed)


def test_batch_log_z_needs_several_draws() -> None:
    with pytest.raises(ValueError, match="draws must be an integer >= 2, got 1"):
        wrapped(objective="tb", log_z="batch")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "control"}, "draws must be an integer >= 2, got 1"),
        ({"objective": "control", "draws": 2, "temperature": 2.0}, "temperature must be 1"),
        ({"objective": "control", "draws": 2, "epsilon": 0.1}, "epsilon 0, got 1.0 and 0.1"),
        ({"objective": "db", "log_z": "batch", "draws": 2}, 'log_z must be "learned", got'),
    ],
)
def test_objectives_that_ask_for_other_options_say_so(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        wrapped(**options)


@pytest.mark.parametrize("method", ["mc", "gflowout", "contextual"])
def test_the_marginal_bound_needs_several_draws(method: str) -> None:
    message = 'bound="marginal" averages over .*draws must be an integer >= 2, got 1'
    with pytest.raises(ValueError, match=message):
        wrapped(method, bound="marginal")
    model = wrapped(method)
    with pytest.raises(ValueError, match=message):
        model.set_options(bound="marginal")


@pytest.mark.parametrize("option", [{"bound": "marginal", "draws": 2}, {"prior": "fixed"}])
def test_sparsity_needs_a_prior_that_follows_the_posterior(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sparsity must be 0 unless .*got 0.5: lower prior_keep"):
        wrapped(sparsity=0.5, **option)


def test_set_options() -> None:
    model = wrapped()
    with pytest.raises(ValueError, match="hidden is fixed by wrap"):
        model.set_options(hidden=(8,))
    with pytest.raises(ValueError, match="beta must be"):
        model.set_options(beta=-1.0)
    with pytest.raises(TypeError, match=r"no option 'bta'; .*; did you mean 'beta'"):
        model.set_options(bta=1.0)


@every_method
@pytest.mark.parametrize("call", ["predict", "train", "draw"])
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X[:, :3], ValueError, r"argument 'x' has shape \[6, 3\].*wrapped with \[batch, 4\]"),
        (X[0], ValueError, r"argument 'x' has shape \[4\].*wrapped with \[batch, 4\]"),
        (X[None].expand(6, 6, 4), ValueError, r"argument 'x' has shape \[6, 6, 4\].*site 'fc1'"),
        (X.tolist(), TypeError, r"at least one torch.Tensor, got \(list\)"),
        (X.numpy(), TypeError, "argument 0 must be a torch.Tensor, got numpy.ndarray; use torch"),
        (X.long(), TypeError, "argument 'x' must be a floating-point tensor.*got torch.int64"),
        (X[:0], ValueError, r"the batch is empty: got an input of shape \[0, 4\]"),
    ],
    ids=["width", "flat", "rank", "list", "numpy", "integer", "empty"],
)
def test_inputs(method: str, call: str, x: Any, error: type[Exception], message: str) -> None:
    model = wrapped(method)
    calls = {
        "predict": lambda: model.predict(x),
        "train": lambda: model(x, y=Y[: len(x)] if call != "train" else Y),
        "draw": lambda: model(x),
    }
    if call == "train" and isinstance(x, Tensor) and len(x) not in (0, 6):
        message = rf"{message}|y must have one label per example of the batch of {len(x)}"
    with pytest.raises(error, match=message):
        calls[call]()


@every_method
def test_no_input_at_all(method: str) -> None:
    with pytest.raises(TypeError, match=r"at least one torch.Tensor"):
        wrapped(method).predict()


@every_method
def test_nan_in_inputs(method: str) -> None:
    model = wrapped(method)
    x = X.clone()
    x[2, 1] = float("nan")
    message = r"argument 'x' must hold no NaN, got 1 in a tensor of shape \[6, 4\]"
    with pytest.raises(ValueError, match=message):
        model(x, y=Y)
    with pytest.raises(ValueError, match=message):
        model.predict(x)
    unchecked = wrapped(method, validate=False)
    assert unchecked.predict(x).mean[2].isnan().all()


@every_method
@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (Y + 1, ValueError, r"y must be in \[0, 2\].*got labels from 1 to 3"),
        (Y - 1, ValueError, r"y must be in \[0, 2\].*got labels from -1 to 1"),
        (Y.float(), TypeError, "y must be an integer tensor.*got torch.float32"),
        (Y.bool(), TypeError, "y must be an integer tensor.*got torch.bool"),
        (
            Y[:4],
            ValueError,
            r"one label per example of the batch of 6, got shape \[4\]",
        ),
        (Y[:, None], ValueError, r"y must have shape \[6\].*got \[6, 1\]"),
        (nn.functional.one_hot(Y, 3), ValueError, r"y must have shape \[6\].*got \[6, 3\]"),
        (Y[:0], ValueError, r"the batch is empty: got y of shape \[0\]"),
        (Y[0], ValueError, "y must have a batch axis, got a scalar tensor"),
        (Y.to(torch.complex64), TypeError, "y must hold real numbers, got torch.complex64"),
        (Y.tolist(), TypeError, "y must be a torch.Tensor, got list"),
        (Y.numpy(), TypeError, "y must be a torch.Tensor, got ndarray"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_labels(method: str, y: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrapped(method)(X, y=y)


@every_method
@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "error", "message"),
    [
        (gfo.Gaussian(1), 1, NAN[:, 0], ValueError, "y must hold finite numbers.*got NaN"),
        (gfo.Gaussian(1), 1, Y, TypeError, "y must be a floating-point tensor.*got torch.int64"),
        (gfo.Gaussian(2), 2, X, ValueError, r"y must have shape \[batch, ..., 2\].*got \[6, 4\]"),
        (gfo.Binary(), 1, Y, ValueError, r"y must be in \[0, 1\] for Binary\(\), got.*0 to 2"),
        (gfo.Binary(), 1, X[:, 0], ValueError, r"y must be in \[0, 1\] for Binary"),
        (gfo.Binary(), 1, NAN[:, 0], ValueError, r"y must be in \[0, 1\].*nan"),
        (gfo.Binary(), 1, torch.zeros(6, 2), ValueError, r"y must have shape \[6\].*got \[6, 2\]"),
        (gfo.MultiLabel(3), 3, X[:, :3] + 5, ValueError, r"y must be in \[0, 1\] for MultiLabel"),
        (gfo.MultiLabel(3), 3, torch.zeros(6, 3) * 1j, TypeError, "y must hold real numbers"),
        (
            gfo.MultiLabel(3),
            3,
            torch.zeros(6),
            ValueError,
            r"y must have shape \[batch, ..., 3\].*\[6\]",
        ),
    ],
)
def test_labels_of_other_likelihoods(
    method: str,
    likelihood: gfo.Likelihood,
    outputs: int,
    y: Tensor,
    error: type[Exception],
    message: str,
) -> None:
    model = wrapped(method, backbone=MLP(outputs=outputs), likelihood=likelihood)
    with pytest.raises(error, match=message):
        model(X, y=y)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((gfo.Categorical, 1), ValueError, "classes must be an integer >= 2, got 1"),
        ((gfo.Categorical, 3.0), TypeError, "classes must be an integer >= 2, got 3.0"),
        ((gfo.Categorical, 3, "pad"), TypeError, "ignore_index must be an integer.*got 'pad'"),
        ((gfo.MultiLabel, 0), ValueError, "labels must be an integer >= 1, got 0"),
        ((gfo.Gaussian, 0), ValueError, "dim must be an integer >= 1, got 0"),
        ((gfo.Gaussian, 1, 0.0), ValueError, r"noise must be a number in \(0, inf\), got 0.0"),
        ((gfo.Gaussian, 1, "1"), TypeError, r"noise must be a number in \(0, inf\), got '1'"),
    ],
)
def test_likelihood_arguments(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    kind, *given = arguments
    with pytest.raises(error, match=message):
        kind(*given)


@every_method
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"samples": 0}, ValueError, "samples must be an integer >= 1, got 0"),
        ({"samples": -3}, ValueError, "samples must be an integer >= 1, got -3"),
        ({"samples": 2.5}, TypeError, "samples must be an integer >= 1, got 2.5 of type float"),
        ({"samples": True}, TypeError, "samples must be an integer >= 1, got True of type bool"),
        ({"chunk": 0}, ValueError, "chunk must be an integer >= 1, got 0"),
        ({"chunk": -1}, ValueError, "chunk must be an integer >= 1, got -1"),
        ({"chunk": "all"}, TypeError, "chunk must be an integer >= 1, got 'all'"),
        ({"generator": 7}, TypeError, "generator must be a torch.Generator or None, got int"),
        ({"generator": np.random.default_rng(0)}, TypeError, "torch.Generator or None, got Gener"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_predict_arguments(
    method: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wrapped(method).predict(X, **arguments)


@every_method
@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ([torch.ones(2, 6, 8)], ValueError, r"masks must hold one tensor per site \(2\), got 1"),
        (torch.ones(2, 6, 8), ValueError, r"masks must hold one tensor per site \(2\), got Tensor"),
        (5, ValueError, r"masks must hold one tensor per site \(2\), got int"),
        ([1, 2], TypeError, "masks must hold tensors, got int"),
        (
            [torch.ones(2, 6, 8), torch.ones(2, 6, 6)],
            ValueError,
            r"masks: the one of site 'fc2' must have shape \[samples, 6, 7\].*got \[2, 6, 6\]",
        ),
        (
            [torch.ones(2, 5, 8), torch.ones(2, 6, 7)],
            ValueError,
            r"masks: the one of site 'fc1' must have shape \[samples, 6, 8\].*got \[2, 5, 8\]",
        ),
        (
            [torch.ones(2, 6, 8), torch.ones(3, 6, 7)],
            ValueError,
            "masks: the one of site 'fc1'.*the same number of samples at every site",
        ),
        (
            [torch.ones(6, 8), torch.ones(6, 7)],
            ValueError,
            r"site 'fc1' must have shape \[samples, 6, 8\].*got \[6, 8\]",
        ),
    ],
)
def test_masks_to_replay(method: str, masks: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrapped(method).predict(X, masks=masks)


def test_samples_must_agree_with_masks() -> None:
    masks = [torch.ones(2, 6, 8), torch.ones(2, 6, 7)]
    with pytest.raises(ValueError, match="samples is 3, but masks holds 2 samples"):
        wrapped().predict(X, masks=masks, samples=3)


@every_method
@pytest.mark.parametrize("labels", [None, Y])
@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ([torch.ones(6, 8)], ValueError, r"masks must hold one tensor per site \(2\), got 1"),
        (
            [torch.ones(6, 8), torch.ones(6, 8)],
            ValueError,
            r"site 'fc2' must have shape \[6, 7\] or \[1, 7\], got \[6, 8\]",
        ),
        (
            [torch.ones(5, 8), torch.ones(6, 7)],
            ValueError,
            r"site 'fc1' must have shape \[6, 8\] or \[1, 8\], got \[5, 8\]",
        ),
        ([torch.ones(8), torch.ones(6, 7)], ValueError, r"site 'fc1' must have shape.*got \[8\]"),
    ],
)
def test_masks_of_one_pass(
    method: str, labels: Any, masks: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wrapped(method)(X, y=labels, masks=masks)


class Changing(nn.Module):
    """Sites that misbehave in a chosen way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 5)
        self.unused = nn.Linear(5, 5)
        self.pick = nn.Identity()
        self.head = nn.LazyLinear(3)
        self.mode = "plain"

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.mode == "swapped":
            return self.head(self.first(self.pick(x[:, :4])) + self.second(hidden))
        if self.mode == "skipped":
            return self.head(hidden)
        hidden = self.second(hidden)
        if self.mode == "twice":
            hidden = self.second(hidden)
        if self.mode == "reshaped":
            hidden = self.pick(hidden[:, :3])
            return self.head(torch.cat((hidden, hidden[:, :2]), 1))
        return self.head(self.pick(hidden))


@every_method
@pytest.mark.parametrize("call", ["predict", "train", "draw"])
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("skipped", "site 'second' did not run in the forward pass"),
        ("twice", "site 'second' ran twice in one forward pass: give each place a submodule"),
        ("swapped", "site 'second' did not run before 'pick'"),
        (
            "reshaped",
            r"site 'pick' changed its shape: got \[\d+, 3\], expected 2 axes with 5 units",
        ),
    ],
)
def test_sites_that_change_after_wrapping(method: str, call: str, mode: str, message: str) -> None:
    net = Changing()
    net(X)
    model = wrapped(method, backbone=net, sites=["second", "pick"])
    net.mode = mode
    calls = {
        "predict": lambda: model.predict(X),
        "train": lambda: model(X, y=Y),
        "draw": lambda: model(X),
    }
    with pytest.raises(ValueError, match=message):
        calls[call]()


def test_sites_that_do_not_work_with_the_example() -> None:
    net = Changing()
    net(X)
    with pytest.raises(ValueError, match="site 'unused' did not run in the forward pass of `exam"):
        wrapped(backbone=net, sites=["unused"])
    with pytest.raises(ValueError, match="site 'relu' ran 3 times in the forward pass of `example"):
        wrapped(backbone=SharedActivation(), sites=["relu"])
    with pytest.raises(ValueError, match=r"site 'encoder.layers.0.self_attn.out_proj' did not run"):
        wrapped(
            backbone=Encoder(),
            sites=["encoder.layers.0.self_attn.out_proj"],
            example=(torch.randn(2, 5, 4),),
        )


class Odd(nn.Module):
    """A part whose output is not a floating-point tensor."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.part = Returns(output)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.part(x)
        return self.head(x)


class Returns(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("text", TypeError, "site 'part' must give a tensor, or a tuple.*got str"),
        (None, TypeError, "site 'part' must give a tensor, or a tuple.*got NoneType"),
        ((), TypeError, "site 'part' must give a tensor, or a tuple.*got tuple"),
        (
            {"a": torch.ones(2, 3)},
            TypeError,
            "site 'part' must give a tensor, or.*got dict",
        ),
        (torch.ones(2, 3).long(), TypeError, "site 'part' must give a floating-point.*int64"),
        (torch.ones(2), ValueError, r"site 'part' gives shape \[2\]: it needs a batch axis"),
        (torch.ones(5, 3), ValueError, "site 'part' has no influence on the output"),
    ],
    ids=["text", "none", "empty", "dict", "integer", "flat", "batch"],
)
def test_sites_without_a_usable_output(output: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrapped(backbone=Odd(output), sites=["part"])


@pytest.mark.parametrize(
    ("output", "kind"),
    [("text", "str"), ({"scores": X}, "dict"), (torch.tensor(1.0), "Tensor"), ((), "tuple")],
    ids=["text", "dict", "scalar", "empty"],
)
def test_backbones_without_a_usable_output(output: Any, kind: str) -> None:
    net = nn.Sequential(nn.Linear(4, 3), Returns(output))
    message = f"the backbone must return a tensor with a batch axis.*got {kind}"
    with pytest.raises(TypeError, match=message):
        wrapped(backbone=net, sites=["0"])


def test_square_activations_of_unknown_layout() -> None:
    """Patches of an image as tokens: as many tokens as features could be read either way."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 5, 2, stride=2)
            self.relu = nn.ReLU()
            self.drop = nn.Dropout(0.1)
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.relu(self.conv(x)).transpose(1, 2)
            return self.head(self.drop(tokens).mean(1))

    example = (torch.randn(2, 2, 10),)
    with pytest.raises(ValueError, match=r"site 'drop' gives shape \[2, 5, 5\].*sites={'drop': 2}"):
        wrapped(backbone=Patches(), sites=None, example=example)
    told = wrapped(backbone=Patches(), sites={"drop": -1}, example=example)
    assert told.sites[0].axis == 2
    straight = wrapped(backbone=Patches(), sites=["relu"], example=example)
    assert straight.sites[0].axis == 1


def test_integer_inputs_where_features_are_needed() -> None:
    ids = torch.randint(11, (2, 5))
    with pytest.raises(TypeError, match='site "input" needs a floating-point tensor'):
        wrapped(backbone=Tokens(), sites=["input"], example=(ids,))
    model = wrapped(backbone=Tokens(), sites=["fc"], example=(ids,))
    with pytest.raises(TypeError, match=r"argument 'ids' must be an integer tensor.*float32"):
        model.predict(ids.float())
    with pytest.raises(ValueError, match=r"failed on `example`.*index out of range"):
        wrapped(backbone=Tokens(), sites=["fc"], example=(ids + 11,))


@every_method
def test_an_error_of_the_backbone_itself_passes_through(method: str) -> None:
    class Picky(MLP):
        def forward(self, x: Tensor) -> Tensor:
            if x.max() > 1000:
                raise KeyError("too large")
            return super().forward(x)

    model = wrapped(method, backbone=Picky())
    with pytest.raises(KeyError, match="too large"):
        model.predict(X + 2000)


def test_files(tmp_path: Any) -> None:
    with pytest.raises(TypeError, match=r"model must come from gfo.wrap, got MLP"):
        gfo.save(MLP(), tmp_path / "model")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="there is no file"):
        gfo.load(tmp_path / "nothing", MLP())


def test_a_keyword_that_the_wrapped_model_takes_is_named() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.out = nn.ReLU(), nn.Linear(3, 2)

        def forward(self, x: Tensor, masks: Tensor | None = None) -> Tensor:
            return self.out(self.act(x))

    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="'masks' is a keyword of the wrapped model's own"):
        gfo.wrap(
            Takes(),
            "mc",
            ["act"],
            likelihood=gfo.Categorical(2),
            example={"x": x, "masks": x},
        )


def test_binary_refuses_two_logits_at_once() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"for two logits use Categorical\(2\)"):
        gfo.wrap(net, "mc", ["1"], likelihood=gfo.Binary(), example=(torch.zeros(2, 3),))


@pytest.mark.parametrize("value", [2.0, 0.3, -1.0, float("nan")])
@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "combined"])
def test_masks_without_a_probability(method: str, value: float) -> None:
    model = wrapped(method=method)
    masks = [torch.full((1, site.units), value) for site in model.sites]
    with pytest.raises(ValueError, match="masks must hold"):
        model(X, y=Y, masks=masks)
    with pytest.raises(ValueError, match="masks must hold"):
        model.predict(X, masks=[mask.expand(2, 6, -1) for mask in masks])


def test_labels_in_the_wrong_place_are_explained() -> None:
    model = wrapped()
    with pytest.raises(TypeError, match="predict takes no labels"):
        model.predict(X, y=Y)
    with pytest.raises(TypeError) as raised:
        model(X, Y)
    assert "labels are passed by keyword" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("axis", [1.0, "a", True])
def test_axis_of_a_site_that_is_no_integer(axis: Any) -> None:
    with pytest.raises(TypeError, match="axis of 'fc1' must be an integer"):
        wrapped(sites={"fc1": axis})


def test_flags_that_are_no_booleans() -> None:
    with pytest.raises(TypeError, match="learn_noise must be True or False"):
        gfo.Gaussian(1, learn_noise="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="validate must be True or False"):
        wrapped(validate="no")


def test_numbers_of_numpy_are_numbers() -> None:
    model = wrapped(method="gflowout", draws=np.int64(2), beta=np.float32(0.5))
    assert len(model.predict(X, samples=np.int64(3)).samples) == 3


def test_a_convolution_names_an_input_of_another_dtype() -> None:
    model = gfo.wrap(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)), "mc", ["1"],
        likelihood=gfo.Categorical(3), example=(torch.randn(2, 1, 3, 3),),
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"'input' must be of .* dtype torch\.float32"):
        model.predict(torch.zeros(2, 1, 3, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda rows, units: torch.ones(rows, units + 1), ValueError, r"\[30, 9\] for site 'fc1'"),
        (lambda rows, units: torch.ones(rows // 5, units), ValueError, "rows one of 1, 5, 30"),
        (lambda rows, units: None, TypeError, "draw must return a tensor for site 'fc1', got None"),
    ],
)
def test_masks_of_a_method_that_do_not_fit(
    draw: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wrapped("mc")
    monkeypatch.setattr(
        model.method,
        "draw",
        lambda site, activation, trajectory: draw(5 * len(X), model.sites[site].units),
    )
    with pytest.raises(error, match=message):
        model.predict(X, samples=5)


@pytest.mark.parametrize(
    "name", ["lr", "generator_lr", "log_z_lr", "weight_decay", "generator_weight_decay"]
)
@pytest.mark.parametrize("value", [-0.1, math.nan, "1e-3", None])
def test_rates_of_parameter_groups_are_checked(name: str, value: Any) -> None:
    model = gfo.wrap(
        nn.Linear(4, 3), "mc", ["input"], likelihood=gfo.Categorical(3), example=(torch.ones(2, 4),)
    )
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be a number in \[0, inf\)"):
        model.parameter_groups(**{name: value})


def test_no_method_needs_no_sites() -> None:
    example = (torch.ones(2, 4),)
    model = gfo.wrap(nn.Linear(4, 3), "none", likelihood=gfo.Categorical(3), example=example)
    assert model.sites == ()


class Plain(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize(
    ("backbone", "names"),
    [
        (Plain(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)), ["layers.1"]),
        (Plain(nn.Linear(4, 8), nn.Linear(8, 3)), ["layers.0"]),
    ],
)
def test_the_sites_that_a_message_suggests_can_be_wrapped(backbone, names) -> None:
    with pytest.raises(ValueError, match="has none: try sites=") as caught:
        wrapped(backbone=backbone, sites=None)
    assert f"try sites={names} to mask hidden units, or sites=['input']" in str(caught.value)
    assert [site.name for site in wrapped(backbone=backbone, sites=names).sites] == names


def test_of_many_layers_a_message_suggests_a_few() -> None:
    deep = Plain(*(layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh())))
    with pytest.raises(ValueError, match="sites=None") as caught:
        wrapped(backbone=deep, sites=None)
    assert "'layers.7'] (there are 6) to mask" in str(caught.value)
    with pytest.raises(ValueError, match=r"name submodules .* or 'input'"):
        wrapped(backbone=Plain(nn.Flatten()), sites=None)


def test_losses_say_which_part_is_the_tensor() -> None:
    losses = wrapped("mc")(X, y=Y)
    with pytest.raises(AttributeError, match=r"no attribute 'backward': use losses\.total\.backwa"):
        losses.backward()
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        losses.nonsense  # noqa: B018
    assert copy.copy(losses).total is losses.total


def test_an_example_of_another_type_names_the_weights() -> None:
    with pytest.raises(ValueError, match=r"its weights are torch\.float32, so convert \w+ to it"):
        wrapped("mc", example=(X.double(),))
