"""The posterior over the ranks of LoRA adapters is the exact one, where it can be enumerated.

Base model and adapters are frozen, and every mask of two or three adapters of rank 8 is enumerated
by hooks on the bare model of ``peft``. q is compared with the best distribution that its
factorisation can represent. The same check must fail for objectives that are wrong in ways that
leave shapes and training untouched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import enumeration
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_loop import descend
from transformers import LlamaConfig, LlamaForCausalLM

import gflowout as gfo
from gflowout.core import objectives, policy
from gflowout.integrations.huggingface import wrap_transformer
from gflowout.integrations.huggingface.adapters import rank_sites

peft = pytest.importorskip("peft")

KEEP = 0.6
TWO, THREE, SMALL = (8, 8), (8, 8, 8), (4, 4)  # ranks: 2**16, 2**24 and 2**8 masks
STRENGTH, SEED = {TWO: 0.75, THREE: 1.2, SMALL: 1.5}, {TWO: 3, THREE: 1, SMALL: 2}


@dataclass
class Problem:
    """A frozen net with adapters, and labels drawn under one hidden mask."""

    net: nn.Module
    x: Tensor
    y: Tensor
    classes: int

    def wrap(self, method: str, **options: Any) -> gfo.MaskedModel:
        likelihood = gfo.Categorical(self.classes)
        if self.y.dim() == 1:
            sites, example = rank_sites(self.net), (self.x[:2],)
            own = {"likelihood": likelihood, "example": example, **options}
            return gfo.wrap(self.net, method, sites, **own)
        with warnings.catch_warnings():  # masks of "gflowout" see a whole text
            warnings.simplefilter("ignore", UserWarning)
            own = {"likelihood": likelihood, "example": {"input_ids": self.x[:2]}, **options}
            return wrap_transformer(self.net, method, **own)


@cache
def problem(ranks: tuple[int, ...]) -> Problem:
    """Two adapters of rank 8 in a language model, others in an MLP; the last is on the output."""
    torch.manual_seed(SEED[ranks])
    text = ranks == TWO
    if text:
        classes, names, x = 6, ["v_proj", "lm_head"], torch.randint(6, (3, 4))
        config = LlamaConfig(
            vocab_size=classes, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=8, initializer_range=0.5,
        )  # fmt: skip
        base: nn.Module = LlamaForCausalLM(config)
    else:
        classes, names, x = 2, ["0", "2", "4"][-len(ranks) :], torch.randn(3, 4)
        widths = (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, classes))
        base = nn.Sequential(*widths)
    own = dict(zip(names, ranks, strict=True))
    task = {"task_type": "CAUSAL_LM"} if text else {}
    lora = peft.LoraConfig(**task, target_modules=names, rank_pattern=own, alpha_pattern=own)
    net = peft.get_peft_model(base, lora).requires_grad_(False).eval()
    for name, parameter in net.named_parameters():
        if "lora_" in name:  # large, so that ranks matter
            size = STRENGTH[ranks] / parameter.shape[1] ** 0.5
            parameter.copy_(size * torch.randn(parameter.shape))
    drawn = Problem(net, x, torch.zeros(x.shape if text else len(x)), classes)
    model = drawn.wrap("mc", rescale="none")
    assert tuple(site.units for site in model.sites) == ranks
    hidden = [(torch.rand(1, units) < 0.5).float() for units in ranks]
    output = model(x, masks=hidden)
    logits = output.logits if text else output
    drawn.y = torch.distributions.Categorical(logits=logits).sample()
    return drawn


@torch.no_grad()
def log_likelihood(net: nn.Module, one: Tensor, label: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """log p(y | x, z) of one example under every mask, [masks].

    Outputs are linear in the mask of the last adapter, so only the others are run.
    """
    *earlier, last = rank_sites(net)
    masks = enumeration.all_masks(sum(ranks[:-1]))
    layer: Any = net.get_submodule(last.rpartition(".lora_A.")[0])
    inputs: list[Tensor] = []
    handles = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))]
    for name, mask in zip(earlier, masks.split(list(ranks[:-1]), -1), strict=True):

        def masked(_: nn.Module, __: Any, output: Tensor, mask: Tensor = mask) -> Tensor:
            return output * mask.reshape(len(mask), *[1] * (output.dim() - 2), -1)

        handles.append(net.get_submodule(name).register_forward_hook(masked))
    net(one.expand(len(masks), *one.shape))
    for handle in handles:
        handle.remove()
    features = inputs[0].reshape(len(masks), -1, inputs[0].shape[-1])
    plain = layer.base_layer(features)
    reduced = layer.scaling["default"] * layer.lora_A["default"](features)
    expand, every = layer.lora_B["default"].weight, enumeration.all_masks(ranks[-1])
    total = torch.zeros(len(masks), len(every))
    for at, chosen in enumerate(label.reshape(-1).tolist()):
        logits = [
            torch.addmm(plain[:, at, kind, None], reduced[:, at] * expand[kind], every.T)
            for kind in range(len(expand))
        ]
        norm = logits[0]
        for other in logits[1:]:
            norm = torch.logaddexp(norm, other)
        total += logits[chosen] - norm
    return total.flatten()


@dataclass
class Truth:
    """Exact answers, of each example for GFlowOut, of all together for ID-GFlowOut."""

    posterior: Tensor  # log-probabilities, [rows, masks]
    evidence: Tensor  # log p(y | x), [rows]
    best: Tensor  # total variation of the best factorised posterior, [rows]
    loss: Tensor  # its KL divergence, [rows]
    prior: Tensor  # total variation of the prior, [rows]


@cache
def exact(method: str, ranks: tuple[int, ...]) -> Truth:
    """For GFlowOut, of the first two examples, or the first with 2**24 masks."""
    own = problem(ranks)
    rows = len(own.x) if method == "id-gflowout" else 1 if ranks == THREE else 2
    examples = zip(own.x[:rows], own.y, strict=False)
    fit = torch.stack([log_likelihood(own.net, one, label, ranks) for one, label in examples])
    fit = fit.sum(0, keepdim=True) if method == "id-gflowout" else fit
    prior = torch.zeros(1)
    for units in ranks:
        masks = enumeration.all_masks(units)
        prior = (prior[:, None] + enumeration.log_fixed_prior(masks, KEEP)).flatten()
    posterior = fit + prior
    evidence = posterior.logsumexp(-1)
    posterior -= evidence[:, None]
    best = enumeration.best_factorised(posterior, [*ranks], starts=1, sweeps=5)
    away = [enumeration.total_variation(other, posterior) for other in (best, prior)]
    return Truth(posterior, evidence, away[0], enumeration.kl(best, posterior), away[1])


def test_the_enumeration_is_that_of_the_library() -> None:
    own = problem(SMALL)
    model = own.wrap("mc", rescale="none")
    masks = enumeration.split(enumeration.all_masks(sum(SMALL)), model)
    for one, label in zip(own.x, own.y, strict=True):
        with torch.no_grad():
            logits = model(one.expand(2 ** sum(SMALL), -1), masks=masks)
        expected = model.likelihood.log_prob(logits, label.expand(len(logits)))
        torch.testing.assert_close(log_likelihood(own.net, one, label, SMALL), expected)


def log_q(model: gfo.MaskedModel, x: Tensor, y: Tensor) -> Tensor:
    """Of every mask, [batch, masks]. Logits of the last site depend on the masks before alone."""
    *earlier, last = (site.units for site in model.sites)
    before, masks = enumeration.all_masks(sum(earlier)), enumeration.all_masks(last)
    blank = torch.cat([before, torch.zeros(len(before), last)], 1)
    rows = []
    for one, label in zip(x, y, strict=True):
        generators = model.method.posterior
        logits = enumeration.generator_logits(model, generators, one, label, blank)
        *first, final = (own.expand(len(before), -1) for own in logits[: len(model.sites)])
        given = torch.distributions.Bernoulli(logits=torch.cat(first, 1)).log_prob(before).sum(-1)
        added = final @ masks.T - F.softplus(final).sum(-1, keepdim=True)
        rows.append((given[:, None] + added).flatten())
    return torch.stack(rows)


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "id-gflowout": ("id-gflowout", {"draws": 48}),
    "id-gflowout-credit": ("id-gflowout", {"draws": 48, "objective": "credit"}),
    "gflowout-paper": (
        "gflowout",
        {"preset": "paper", "prior": "fixed", "temperature": 1.0, "epsilon": 0.0},
    ),
    "gflowout": ("gflowout", {"prior": "fixed"}),
}
STEPS = {TWO: 150, THREE: 250, SMALL: 100}


def errors(name: str, ranks: tuple[int, ...], **options: Any) -> tuple[float, float]:
    """Train q; how much further than the best it is from the truth, and how wrong log Z is."""
    method, own = METHODS[name]
    truth, problem_ = exact(method, ranks), problem(ranks)
    torch.manual_seed(0)
    count = len(problem_.x) if method == "id-gflowout" else len(truth.posterior)
    copies = 1 if method == "id-gflowout" else 64 // count
    x, y = (torch.cat([value[:count]] * copies) for value in (problem_.x, problem_.y))
    size = {"train_size": len(x)} if method == "id-gflowout" else {}
    model = problem_.wrap(method, **{"prior_keep": KEEP, "hidden": (32,), **size, **own, **options})
    optimiser = torch.optim.Adam(
        model.parameter_groups(generator_lr=1.5e-2, log_z_lr=5e-2), fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS[ranks])
    descend(model, x, y, optimiser, STEPS[ranks], schedule)
    rows = len(truth.posterior)
    q = log_q(model, problem_.x[:rows], problem_.y[:rows])
    away = enumeration.total_variation(q, truth.posterior) - truth.best
    model.set_options(draws=1000 // copies)  # where log Z is estimated, it is a mean over draws
    log_z = model(x, y=y).log_z.detach().reshape(-1, count)
    log_z = log_z.mean() if method == "id-gflowout" else log_z.mean(0)
    return away.max().item(), (log_z - truth.evidence).abs().max().item()


def check(name: str, ranks: tuple[int, ...], **options: Any) -> None:
    """Raise unless both errors are small."""
    away, error = errors(name, ranks, **options)
    assert away <= 0.05, f"{away:.3f} further than the best factorised posterior"
    assert error <= 0.1, f"log Z is {error:.3f} nats from the evidence"


@pytest.mark.parametrize("method", ["id-gflowout", "gflowout"])
@pytest.mark.parametrize("ranks", [TWO, THREE, SMALL])
def test_the_problems_ask_for_something(method: str, ranks: tuple[int, ...]) -> None:
    truth = exact(method, ranks)
    assert truth.prior.min() >= 0.15
    assert truth.loss.max() <= 0.06  # so log Z can be the evidence


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ranks", [TWO, THREE, SMALL])
def test_the_posterior_over_ranks_is_found(name: str, ranks: tuple[int, ...]) -> None:
    check(name, ranks)


def of_posterior(mask: Tensor, logits: Tensor) -> Tensor:
    """A log-probability with a wrong sign, of the posterior only: the prior has no gradient."""
    sign = -1 if logits.requires_grad else 1
    return (mask * F.logsigmoid(logits) + sign * (1 - mask) * F.logsigmoid(-logits)).sum(-1)


def without_prior(log_likelihood: Tensor, log_prior: Tensor, beta: float = 1.0) -> Tensor:
    return (beta * log_likelihood + 0 * log_prior).detach()


def without_likelihood(log_likelihood: Tensor, log_prior: Tensor, beta: float = 1.0) -> Tensor:
    return (0 * log_likelihood + log_prior).detach()


WRONG: dict[str, tuple[object, str, Callable[..., Tensor]]] = {
    "sign": (policy, "log_prob", of_posterior),
    "reward-without-prior": (objectives, "log_reward", without_prior),
    "reward-without-likelihood": (objectives, "log_reward", without_likelihood),
}


@pytest.mark.parametrize("name", ["id-gflowout", "gflowout-paper"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_objective_is_caught(
    monkeypatch: pytest.MonkeyPatch, wrong: str, name: str
) -> None:
    exact(METHODS[name][0], SMALL)  # what is right is not computed with a mistake
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises(AssertionError, match="further than the best"):
        check(name, SMALL)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("name", ["id-gflowout-credit", "gflowout"])
def test_a_wrong_credit_is_caught(name: str, beta: float) -> None:
    """That of no likelihood, and of its square."""
    with pytest.raises(AssertionError, match="further than the best"):
        check(name, SMALL, beta=beta)


def test_a_wrong_size_of_the_training_set_is_caught() -> None:
    with pytest.raises(AssertionError, match="further than the best"):
        check("id-gflowout", SMALL, train_size=2 * len(problem(SMALL).x))
