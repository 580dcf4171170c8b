"""The reported ELBO against enumeration of all masks of a small network."""

import copy
import itertools

import pytest
import torch

import gflowout as gfo
from gflowout.studies.elbo import elbo

UNITS, SIZE = 4, 50


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, UNITS, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])


def model_of(method, x, **options):
    torch.manual_seed(1)
    net = torch.nn.Linear(UNITS, 3)
    model = gfo.wrap(
        net, method, ["input"], likelihood=gfo.Categorical(3), example=(x,), keep=0.7, **options
    )
    with torch.no_grad():  # away from the start, where posterior and prior are the same
        for parameter in model.method.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def enumerated(model, x, y):
    """Sum over all masks of q (log p(y | x, z) + log p(z) - log q(z)), mean over examples."""
    total = torch.zeros(len(y))
    model.eval()
    for bits in itertools.product((0.0, 1.0), repeat=UNITS):
        mask = torch.tensor(bits).expand(len(y), -1)
        with torch.no_grad():
            losses = model(x, y=y, masks=[mask])
        inside = losses.log_likelihood + losses.log_p - losses.log_q
        total += losses.log_q.exp() * inside
    return float(total.mean())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gflowout", {"preset": "paper"}),
        ("gflowout", {}),
        ("contextual", {}),
        ("id-gflowout", {"preset": "paper", "train_size": SIZE}),
    ],
)
def test_the_elbo_is_that_of_enumeration(data, method, options):
    x, y = data
    model = model_of(method, x, **options)
    exact = enumerated(model, x, y)
    if method == "id-gflowout":  # of the training set: six examples stand for all
        exact /= SIZE
    before = model.method.options
    batches = [((x,), y)] if method == "id-gflowout" else [((x[:4],), y[:4]), ((x[4:],), y[4:])]
    assert elbo(model, batches, draws=4000) == pytest.approx(exact, abs=0.03)
    assert model.method.options == before
    assert model.training is False


def test_a_method_without_a_posterior_draws_from_its_prior(data):
    x, y = data
    model = model_of("mc", x)
    exact = torch.zeros(())
    for bits in itertools.product((0.0, 1.0), repeat=UNITS):
        mask = torch.tensor(bits)
        share = 0.7 ** float(mask.sum()) * 0.3 ** float(UNITS - mask.sum())
        scores = model.backbone(x * mask / 0.7).log_softmax(-1)
        exact = exact + share * scores[torch.arange(6), y].mean()
    assert elbo(model, [((x,), y)], draws=4000) == pytest.approx(exact.item(), abs=0.03)
    plain = gfo.wrap(torch.nn.Linear(UNITS, 3), "none", (), likelihood="classification",
                     example=(x,))  # fmt: skip
    nll = plain.eval()(x, y=y).nll.item()
    assert elbo(plain, [((x,), y)]) == pytest.approx(-nll, abs=1e-5)
    assert elbo(gfo.Ensemble([plain, copy.deepcopy(plain)]), [((x,), y)]) is None


def test_shared_masks_of_the_combined_method_count_once_for_all_examples(data):
    x, y = data
    model = model_of("combined", x, train_size=SIZE)
    pair = [torch.tensor([1.0, 0, 1, 1, 1, 1, 0, 1]).expand(6, -1)]
    beyond = []
    for size in (SIZE, 10 * SIZE):
        model.set_options(train_size=size)
        with torch.no_grad():
            losses = model(x, y=y, masks=pair)
        beyond.append(size * float(losses.kl - (losses.log_q - losses.log_p).mean()))
    assert abs(beyond[0]) > 1e-3
    assert beyond[0] == pytest.approx(beyond[1], rel=1e-2, abs=1e-3)
