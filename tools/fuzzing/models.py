"""Valid calls of wrapped models: predictions, training passes, copies, files, ensembles."""

from __future__ import annotations

import copy
import fnmatch
import pickle
import random
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from fuzzing import networks
from fuzzing.checks import Problem, attempt, close, finite, true, unchanged
from fuzzing.networks import Case
from gflowout.core import tree
from gflowout.core.call import logits_of
from gflowout.methods import METHODS

POLICY: dict[str, list[Any]] = {
    "temperature": [1.0, 3.0], "epsilon": [0.0, 0.5], "beta": [0.5, 2.0],
    "prior_keep": [0.3, 0.9], "rescale": ["kept", "none"], "hidden": [(4,), (8, 8)],
}  # fmt: skip
MASKED: dict[str, list[Any]] = {**POLICY, "blocks": [2], "draws": [2, 3]}
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "none": {},
    "mc": {"rescale": ["kept", "none", "inverse"], "draws": [2]},
    "concrete": {"rate": [0.3, 0.6], "per_unit": [True], "relaxation": [0.5]},
    "contextual": {"rescale": ["kept"], "reduction": [2], "kl_weight": [0.1], "prior_keep": [0.8]},
    "variational": {"alpha": [0.5], "per_unit": [True], "kl_weight": [0.5]},
    "gates": {"noise": [0.2], "strength": [0.1], "shared": [True], "predict": ["mean"]},
    "masksembles": {"members": [2, 3], "scale": [1.5, 3.0], "rescale": ["kept"]},
    "modes": {"modes": [2, 5], "scale": [1.5, 3.0], "rate": [0.3], "rescale": ["none"]},
    "id-gflowout": {
        **MASKED, "log_z": ["learned"], "group_size": [1, 3], "history": ["summary"],
        "start_keep": [0.9], "sparsity": [0.1],
    },
    "gflowout": {**MASKED, "history": ["summary"], "sparsity": [0.1], "prior": ["fixed"]},
    "combined": {**MASKED, "group_size": [2]},
}  # fmt: skip


@dataclass(eq=False)
class Wrapped:
    """A wrapped network, with the arguments that it was wrapped with."""

    case: Case
    model: gfo.MaskedModel
    given: dict[str, Any]


def generator(seed: int) -> torch.Generator:
    """A source of random numbers of its own."""
    return torch.Generator().manual_seed(seed)


def example(case: Case, batch: int) -> Any:
    """A call in the form that ``example`` takes."""
    args, kwargs = case.call(batch)
    return {"x": args[0], **kwargs} if args and kwargs else kwargs or args


def arguments(rng: random.Random) -> tuple[Case, dict[str, Any]]:
    """Make up a network, and valid arguments of ``wrap`` for it."""
    case = networks.make(rng)
    method = rng.choice(list(OPTIONS))
    options = {
        name: rng.choice(values) for name, values in OPTIONS[method].items() if rng.random() < 0.3
    }
    if method == "mc":
        options["rate"] = rng.choice([0.1, 0.5, 0.8])
    if options.get("prior") == "fixed":
        options.pop("sparsity", None)
    if hasattr(METHODS[method].Options, "train_size"):
        options["train_size"] = 50
    first = tree.tensors(case.call(2))[0][1]
    sequences = first.dim() > 2 or not first.is_floating_point()
    least = 2 if case.mixes or case.dtype == torch.bfloat16 else 1  # which rounds a trial away
    batch = 7 if case.mixes and sequences else rng.randint(least, 4)
    shapes = activations(case, batch + 2)
    sites = _sites(rng, case, shapes, METHODS[method].keep_rates)
    given = {
        "method": method, "sites": sites, "likelihood": case.likelihood,
        "example": example(case, batch), "validate": rng.random() < 0.9, **options,
    }  # fmt: skip
    return case, given


def wrapped(rng: random.Random) -> Wrapped:
    """Make up a network and wrap it, which must not change it."""
    case, given = arguments(rng)
    with unchanged(case.net, but=("random state",)):
        model = gfo.wrap(case.net, **given)
    for name, parameter in model.method.named_parameters():
        nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
    return Wrapped(case, model, given)


def activations(case: Case, batch: int) -> dict[str, torch.Size]:
    """Shapes of what may be masked: outputs of submodules that run once, and the input."""
    shapes: dict[str, list[torch.Size]] = {}
    net = copy.deepcopy(case.net).eval()

    def look(name: str, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        shapes.setdefault(name, []).append(value.shape)

    for name, part in net.named_modules():
        if name:
            part.register_forward_hook(lambda _, __, output, name=name: look(name, output))
    args, kwargs = case.call(batch)
    net(*args, **kwargs)
    first = tree.tensors((args, kwargs))[0][1]
    if first.is_floating_point():
        shapes["input"] = [first.shape]
    return {name: runs[0] for name, runs in shapes.items() if len(runs) == 1}


def _sites(rng: random.Random, case: Case, shapes: dict[str, torch.Size], keep: bool) -> Any:
    """Sites by name, pattern or mapping, or all layers of dropout."""
    modules = dict(case.net.named_modules())
    dropouts = [n for n, part in modules.items() if isinstance(part, nn.modules.dropout._DropoutNd)]
    if dropouts and rng.random() < 0.3 and set(dropouts) <= shapes.keys():
        return None
    chosen = rng.sample(list(shapes), min(len(shapes), rng.randint(1, 3)))
    if rng.random() < 0.2:
        pattern = chosen[0].rpartition(".")[0] + ".*"
        matches = [name for name in modules if name and fnmatch.fnmatchcase(name, pattern)]
        if matches and set(matches) <= shapes.keys():
            return [pattern]
    if rng.random() < 0.6:
        return chosen
    return {name: rng.choice([None, _units(rng, shapes[name], keep)]) for name in chosen}


def _units(rng: random.Random, shape: torch.Size, keep: bool) -> gfo.Units:
    axis: Any = 1 if len(shape) == 4 else len(shape) - 1
    if len(shape) == 4 and rng.random() < 0.5:
        return gfo.Units(axis=(2, 3), patch=rng.choice([1, 2, 3]))
    size, options = shape[axis], {}
    if size > 3 and rng.random() < 0.5:
        options = {"groups": [[0, 2]], "always": [size - 1]}
    if keep and rng.random() < 0.5:
        options["keep"] = rng.choice([0.6, [0.7] * size])
    return gfo.Units(axis=axis, **options)


def reference(w: Wrapped, masks: list[Tensor], args: Any, kwargs: Any) -> tuple[Tensor, nn.Module]:
    """Logits under masks, [batch, units] per site, by plain hooks on a copy; and the copy."""
    model = w.model
    net = copy.deepcopy(model.backbone).train(model.training)
    args, kwargs = tree.clone((args, kwargs))
    for index, (site, mask) in enumerate(zip(model.sites, masks, strict=True)):
        factor = _spread(site, _multiplier(model, index, mask))

        def masked(output: Any, factor: Tensor = factor) -> Any:
            value = output[0] if isinstance(output, tuple) else output
            value = value * factor.to(value.dtype)
            return (value, *output[1:]) if isinstance(output, tuple) else value

        if site.name == "input":
            first = tree.tensors((args, kwargs))[0][1]
            product = masked(first)
            args, kwargs = tree.map_tensors(
                lambda _, tensor, old=first, new=product: new if tensor is old else tensor,
                (args, kwargs),
            )
        else:
            part = net.get_submodule(site.name)
            part.eval() if isinstance(part, nn.modules.dropout._DropoutNd) else None
            part.register_forward_hook(lambda _, __, output, masked=masked: masked(output))
    with torch.enable_grad():  # keeps attention off its fused path
        return logits_of(net(*args, **kwargs)), net


def _multiplier(model: gfo.MaskedModel, index: int, mask: Tensor) -> Tensor:
    """What the units of a site are multiplied by under a mask."""
    method, site = model.method, model.sites[index]
    rescale = getattr(method.options, "rescale", "none")
    if method.name == "concrete":
        return mask / (1 - method.rate(index)).detach()
    if rescale == "kept":
        return mask * mask.shape[-1] / mask.sum(-1, keepdim=True).clamp(min=1)
    if rescale == "inverse" and method.name == "modes":
        share = method.get_buffer(f"masks{index}").mean()
        return mask / ((1 - method.options.rate) * share)
    if rescale == "inverse":
        return mask / (1 - method.options.rate if site.keep is None else torch.tensor(site.keep))
    return mask


def _spread(site: gfo.Site, mask: Tensor) -> Tensor:
    """A mask of units as a factor of the activation."""
    if site.layout is not None:  # the last column, number -1, is for what is never masked
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)[:, list(site.layout.unit)]
    shape = [1] * site.rank
    shape[site.batch_axis] = len(mask)
    for axis, size in zip(site.axes, site.shape, strict=True):
        shape[axis] = size
    return mask.reshape(shape)


def _batch(w: Wrapped, rng: random.Random) -> tuple[int, Any, Any, list[Tensor]]:
    size = rng.randint(w.case.smallest, 7)
    args, kwargs = w.case.call(size)
    return size, args, kwargs, [tensor for _, tensor in tree.tensors((args, kwargs))]


def predict(w: Wrapped, rng: random.Random) -> None:
    """A prediction is the loop over its draws, and leaves everything alone."""
    model, dtype = w.model.train(rng.random() < 0.5), w.case.dtype
    size, args, kwargs, inputs = _batch(w, rng)
    seed, samples = rng.randrange(1000), rng.choice([1, 2, 3, 5, 20])
    asked = {"samples": samples, "chunk": rng.choice([None, None, 1, 2, 4, 100])}
    mode = rng.choice([nullcontext, nullcontext, torch.inference_mode, torch.no_grad])
    with unchanged(model, inputs=inputs), mode():
        pred = model.predict(*args, **asked, generator=generator(seed), return_masks=True, **kwargs)
    true("there are as many samples as asked for", len(pred.samples) == samples)
    _scores(pred, w.case.labels(size))
    model.eval()
    for draw in range(min(samples, 4)):
        output, _ = reference(w, [mask[draw] for mask in pred.masks], args, kwargs)
        close("draw by plain hooks", pred.samples[draw], model.likelihood.samples(output), dtype)
    asked["chunk"] = 1
    again = model.predict(*args, **asked, generator=generator(seed), return_masks=True, **kwargs)
    if dtype != torch.bfloat16:  # whose probabilities depend on how draws are folded
        for one, other in zip(pred.masks, again.masks, strict=True):
            true("masks do not depend on the chunk", torch.equal(one, other))
        close("chunk=1 and folded", pred.samples, again.samples, dtype)
    replayed = model.predict(*args, masks=pred.masks, **kwargs)
    close("masks replayed", replayed.samples, pred.samples, dtype)


def _scores(pred: gfo.Predictive, labels: Tensor) -> None:
    finite("predict", pred.samples)
    close("mean", pred.mean, pred.samples.mean(0))
    finite("log_prob", pred.log_prob(labels))
    if isinstance(pred.likelihood, gfo.Gaussian):
        for name in ("variance", "aleatoric_variance", "epistemic_variance"):
            true(f"{name} >= 0", bool((finite(name, getattr(pred, name)()) >= 0).all()))
        finite("quantile", pred.quantile(0.3))
        return
    true("probabilities are in [0, 1]", pred.mean.min() >= 0 and pred.mean.max() <= 1 + 1e-5)
    for name in ("entropy", "expected_entropy", "mutual_information", "max_probability"):
        true(f"{name} >= 0", bool((finite(name, getattr(pred, name)()) > -1e-4).all()))
    finite("variance", pred.variance())
    finite("dempster_shafer", pred.dempster_shafer())
    if isinstance(pred.likelihood, gfo.Categorical):
        own = pred.mean.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log()
        close("log_prob", pred.log_prob(labels).exp(), own.exp())


def train(w: Wrapped, rng: random.Random) -> None:
    """A training pass has the loss and the gradients of the loop over its draws."""
    model, case = w.model.train(rng.random() < 0.5), w.case
    size, args, kwargs, inputs = _batch(w, rng)
    if model.training and size == 1:
        size = 2
        args, kwargs = case.call(size)
        inputs = [tensor for _, tensor in tree.tensors((args, kwargs))]
    y = case.labels(size)
    changing = ("random state", "tensors") if model.training else ("random state",)
    router = getattr(model.method, "router", nn.Identity())  # of modes: their probabilities
    odds: list[Tensor] = []
    handle = router.register_forward_hook(lambda _, __, output: odds.append(output.detach()))
    with unchanged(model, inputs=inputs, but=changing):
        losses = model(*args, y=y, **kwargs)
    handle.remove()
    for name in ("total", "nll", "tb", "prior"):
        finite(name, getattr(losses, name))
    close("total", losses.total, losses.nll + losses.tb + losses.prior)
    if case.plain or not model.training:
        weights = odds[0][:size].log_softmax(-1).T if odds else None
        _same_gradients(w, losses, args, kwargs, y, weights)
    optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-3))
    losses.total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            finite(f"gradient of {name}", parameter.grad)
    optimizer.step()
    finite("prediction after a step", model.predict(*args, samples=3, **kwargs).samples)


def _same_gradients(
    w: Wrapped, losses: gfo.Losses, args: Any, kwargs: Any, y: Tensor, weights: Tensor | None
) -> None:
    """Against a loop over the draws: their mean, or a mixture with log-weights [draws, batch]."""
    model, dtype = w.model, w.case.dtype
    target = model.likelihood.target(y)
    draws = [losses.masks] if losses.masks[0].dim() == 2 else list(zip(*losses.masks, strict=True))
    passes = [reference(w, list(masks), args, kwargs) for masks in draws]
    scores = torch.stack([model.likelihood.log_prob(output, target) for output, _ in passes])
    shares, expected = torch.full_like(scores, 1 / len(draws)), -scores.detach().mean()
    if weights is not None:
        shares = (scores.detach() + weights).softmax(0)
        expected = -(scores.detach() + weights).logsumexp(0).mean()
    gradients = None
    for share, score, (_, net) in zip(shares, scores, passes, strict=True):
        parameters = list(net.parameters())
        own = torch.autograd.grad(
            -(share * score).mean(), parameters, allow_unused=True, retain_graph=True
        )
        own = [torch.zeros(()) if value is None else value for value in own]
        sums = own if gradients is None else map(torch.add, gradients, own)
        gradients = list(sums)
    close("nll", losses.nll, expected.to(losses.nll.dtype), dtype)
    if dtype == torch.bfloat16:
        return
    backbone = dict(model.backbone.named_parameters())
    found = torch.autograd.grad(
        losses.nll, list(backbone.values()), allow_unused=True, retain_graph=True
    )
    for name, value, wanted in zip(backbone, found, gradients or (), strict=True):
        close(f"gradient of {name}", torch.zeros(()) if value is None else value, wanted, dtype)


def forward(w: Wrapped, rng: random.Random) -> None:
    """A plain call gives the backbone's kind of output; with masks, that of the draw."""
    _, args, kwargs, inputs = _batch(w, rng)
    model = w.model.eval()
    masks = [mask[0] for mask in model.predict(*args, samples=1, return_masks=True, **kwargs).masks]
    with unchanged(model, inputs=inputs, but=("random state",)), torch.no_grad():
        output = model(*args, masks=masks, **kwargs)
    wanted, _ = reference(w, masks, args, kwargs)
    close("model(x, masks=masks)", logits_of(output), wanted, w.case.dtype)
    kind = type(model.backbone(*args, **kwargs))
    if len(tree.tensors((args, kwargs))[0][1]) > 1 or not any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()
    ):
        model.train(rng.random() < 0.5)
    with unchanged(model, inputs=inputs, but=("random state", "tensors")):
        drawn = model(*args, **kwargs)
    true("the output is of the backbone's type", type(output) is type(drawn) is kind)
    finite("model(x)", logits_of(drawn))


def copies(w: Wrapped, rng: random.Random) -> None:
    """A copy of any kind predicts the same."""
    model = w.model
    _, args, kwargs, _ = _batch(w, rng)
    expected = model.predict(*args, samples=4, generator=generator(3), **kwargs)
    other = copy.deepcopy(w.case.net)
    for tensor in [*other.parameters(), *other.buffers()]:
        if tensor.is_floating_point():
            nn.init.normal_(tensor)
    way = rng.choice(["deepcopy", "pickle", "state_dict", "file", "ours"])
    with unchanged(model, but=("random state",)):
        if way == "deepcopy":
            twin = copy.deepcopy(model)
        elif way == "pickle":
            twin = pickle.loads(pickle.dumps(model))
        elif way == "state_dict":
            twin = gfo.wrap(other, **{**w.given, "likelihood": copy.deepcopy(model.likelihood)})
            twin.load_state_dict(model.state_dict())
        else:
            if way == "ours":
                other.load_state_dict(model.backbone.state_dict())
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.safetensors"
                gfo.save(model, path, backbone=way == "file")
                twin = gfo.load(path, other)
    pred = twin.predict(*args, samples=4, generator=generator(3), **kwargs)
    close(f"copy by {way}", pred.samples, expected.samples, w.case.dtype)


def inclusion(w: Wrapped, rng: random.Random) -> None:
    """Inclusion probabilities are the means of the masks of a prediction."""
    model = w.model
    _, args, kwargs, inputs = _batch(w, rng)
    at = rng.randrange(len(model.sites))
    asked = {"samples": rng.choice([1, 5, 30]), "generator": generator(4)}
    name = model.sites[at].name
    with unchanged(model, inputs=inputs):
        result = attempt(lambda: model.inclusion(*args, site=name, **asked, **kwargs), "masks")
    asked["generator"] = generator(4)
    again = model.inclusion(*args, site=name, **asked, **kwargs)
    true("inclusion follows from the generator", torch.equal(result.masks, again.masks))
    if model.method.name == "id-gflowout":  # whose masks are those of a prediction
        asked["generator"] = generator(4)
        masks = model.predict(*args, **asked, return_masks=True, **kwargs).masks[at]
        close("inclusion", result.mean, masks.double().mean((0, 1)))
    low, high = result.interval()
    true("intervals are in order", bool((low <= high).all()))


def set_options(w: Wrapped, rng: random.Random) -> None:
    """Options that are set act in the next prediction."""
    kind = type(w.model.method.options)
    free = [name for name in OPTIONS[w.model.method.name] if name not in kind.STRUCTURAL] + (
        ["rate"] if w.model.method.name == "mc" else []
    )
    for name in rng.sample(free, min(2, len(free))):
        values = OPTIONS[w.model.method.name].get(name, [0.2, 0.7])
        with unchanged(w.model):
            w.model.set_options(**{name: rng.choice(values)})
    predict(w, rng)


def ensemble(w: Wrapped, rng: random.Random) -> None:
    """An ensemble predicts with the samples of its members, and is saved and loaded."""
    twin = copy.deepcopy(w.model)
    for parameter in twin.backbone.parameters():
        parameter.data.mul_(1.1)
    both = gfo.Ensemble([w.model, twin], weights=rng.choice([None, [0.25, 0.75]]))
    size, args, kwargs, inputs = _batch(w, rng)
    with unchanged(both, inputs=inputs):
        pred = both.predict(*args, samples=8, generator=generator(5), **kwargs)
    true("there are 8 samples", len(pred.samples) == 8)
    _scores(pred, w.case.labels(size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.safetensors"
        gfo.save(both, path)
        again = gfo.load(path, [copy.deepcopy(w.case.net) for _ in range(2)])
    other = again.predict(*args, samples=8, generator=generator(5), **kwargs)
    close("ensemble from a file", other.samples, pred.samples, w.case.dtype)


def wrap(w: Wrapped, rng: random.Random) -> None:
    """A wrapped model keeps the backbone's keys, and all parameters are in one group each."""
    model, net = w.model, w.case.net
    true("unwrap gives the backbone", gfo.unwrap(model) is net)
    keys = model.state_dict().keys()
    own = {key for key in keys if not key.startswith("gflowout.")}
    true("the keys of the backbone are its own", own == net.state_dict().keys())
    grouped = [id(p) for group in model.parameter_groups() for p in group["params"]]
    true(
        "every parameter is in one group",
        sorted(grouped) == sorted(id(parameter) for parameter in model.parameters()),
    )
    true("the model can be shown", "site" in repr(model))
    _, args, kwargs, inputs = _batch(w, rng)
    with unchanged(model, inputs=inputs):
        first, second = (
            model.predict(*args, samples=3, generator=generator(5), **kwargs).samples
            for _ in range(2)
        )
    if not torch.equal(first, second):
        raise Problem("wrong", "the same call repeated gives another answer")
