"""The guard against lost speed: it counts work, which is the same on every machine, not seconds.

What a training step and a prediction with 20 draws take is bounded in two ways. Passes, rows and
random numbers follow from the sizes: formulas, below. All else is compared with ``work.json``; to
accept a change, ``python -m gflowout.bench.guard > tests/work.json``.
"""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench import guard
from gflowout.bench.methods import BARE, DRAWS, METHODS, models, prediction
from gflowout.bench.work import (
    MEMORY_METHODS,
    Work,
    count,
    work_of,
    work_tables,
)
from gflowout.core import runner as drawing
from gflowout.core.noise import Noise
from gflowout.core.shared_product import SharedProduct

FILE = Path(__file__).parents[1] / "work.json"
SLACK = {"operations": 0.03, "flops": 0.01, "allocated": 0.03, "peak": 0.03}
"""By how much work may exceed the file: what is not listed, by nothing."""

UNITS = {"mlp": (300, 100), "resnet": tuple(4 * 2**stage for stage in (0, 0, 1, 1, 2, 2, 3, 3))}
Works = dict[str, dict[str, Work]]


def grown(found: Work, kept: dict[str, int]) -> list[str]:
    """What a piece of work takes more of than it did, in words."""
    return [
        f"{kind}: {getattr(found, kind):,}, was {bound:,}"
        for kind, bound in kept.items()
        if getattr(found, kind) > bound * (1 + SLACK.get(kind, 0))
    ]


@pytest.fixture(scope="module")
def works() -> Works:
    return guard.guarded()


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


class TestGuard:
    def test_no_work_has_grown(self, works: Works, kept: dict[str, Any]) -> None:
        if torch.__version__.split("+")[0] != kept["torch"]:
            pytest.skip(f"work.json is for torch {kept['torch']}: others cut operations otherwise")
        told = [
            f"{action}, {method}: {line}"
            for action, methods in works.items()
            for method, work in methods.items()
            for line in grown(work, kept[action][method])
        ]
        assert not told, "more work than before:\n" + "\n".join(told)

    def test_the_file_names_what_is_measured(self, works: Works, kept: dict[str, Any]) -> None:
        assert list(kept) == ["torch", *works]
        for action, methods in works.items():
            known = METHODS if action.startswith("mlp") else guard.RESNET_METHODS
            assert list(kept[action]) == list(methods) == [BARE, *known]
            assert all(tuple(numbers) == guard.KEPT for numbers in kept[action].values())

    @pytest.mark.parametrize(
        ("network", "name"),
        [
            *(("mlp", name) for name in METHODS),
            *(("resnet", name) for name in guard.RESNET_METHODS),
        ],
    )
    def test_a_step_is_one_pass_on_as_many_copies_as_it_scores_masks(
        self, works: Works, network: str, name: str
    ) -> None:
        work, batch = works[f"{network}-step"][name], guard.BATCH[network]
        copies = 4 if name == "id-gflowout" else 1
        passes = 2 if name == "contextual" else 1
        assert work.passes <= passes
        most = passes * copies * batch
        assert all(rows <= most for rows in work.rows.values()), work.rows
        if network == "mlp":  # draws part at the first site
            assert work.rows["hidden.0.linear"] <= passes * batch
            assert work.rows["output"] == most

    @pytest.mark.parametrize("name", METHODS)
    def test_draws_of_the_mlp_share_its_first_layer(self, works: Works, name: str) -> None:
        work, batch = works["mlp-predict"][name], guard.BATCH["mlp"]
        copies = 1 if name == "none" else DRAWS
        assert work.passes == 1
        expected = {"hidden.0.linear": 1, "hidden.1.linear": copies, "output": copies}
        assert work.rows == {layer: batch * count for layer, count in expected.items()}

    @pytest.mark.parametrize("name", guard.RESNET_METHODS)
    @pytest.mark.parametrize(
        ("action", "first"),
        [("resnet-predict", "layer1.0.bn2"), ("resnet-predict-last", "layer4.0.bn2")],
    )
    def test_draws_of_the_resnet_share_what_is_before_the_first_site(
        self, works: Works, action: str, first: str, name: str
    ) -> None:
        work, batch = works[action][name], guard.BATCH["resnet"]
        layers = list(work.rows)  # in the order in which they first run
        shared = layers[: layers.index(first) + 1]
        assert len(shared) == {"layer1.0.bn2": 6, "layer4.0.bn2": 34}[first]
        assert work.passes <= 2
        for layer, rows in work.rows.items():
            assert rows <= batch * (1 if layer in shared or name == "none" else DRAWS), layer

    @pytest.mark.parametrize("network", ["mlp", "resnet"])
    def test_a_random_number_for_a_unit_of_a_mask_and_no_more(
        self, works: Works, network: str
    ) -> None:
        batch, units = guard.BATCH[network], UNITS[network]
        shared = sum(units)
        own = sum(_drawn(batch * one) for one in units)
        step, predict = works[f"{network}-step"], works[f"{network}-predict"]
        for name in ("mc", "concrete", "contextual", "gflowout"):
            epsilon = len(units) * batch if name == "gflowout" else 0
            assert step[name].random_numbers <= own + epsilon, name
            assert predict[name].random_numbers <= DRAWS * own + DRAWS, name  # a seed each
        assert step["id-gflowout draws=1"].random_numbers <= min(8, batch) * shared
        assert predict["id-gflowout draws=1"].random_numbers <= DRAWS * shared + DRAWS
        if network == "mlp":
            assert step["id-gflowout"].random_numbers <= 4 * shared

    @pytest.mark.parametrize("network", ["mlp", "resnet"])
    def test_calls_of_generators(self, works: Works, network: str) -> None:
        sites = len(UNITS[network])
        step, predict = works[f"{network}-step"], works[f"{network}-predict"]
        assert step["gflowout"].calls <= 2 * sites + 1  # posterior, prior; log Z
        assert step["id-gflowout draws=1"].calls <= sites
        assert predict["id-gflowout draws=1"].calls <= sites  # for all draws at once
        for name in ("contextual", "gflowout"):
            assert predict[name].calls <= sites * predict[name].passes

    def test_draws_take_less_than_their_passes(self, works: Works) -> None:
        """Floating-point operations relative to 20 plain passes: the floor of the times."""
        for action, most in (("mlp-predict", 0.25), ("resnet-predict", 0.86)):
            bare = works[action][BARE].flops
            for name in ("mc", "concrete", "contextual", "id-gflowout draws=1", "gflowout"):
                assert works[action][name].flops <= most * bare, (action, name)


def _drawn(numbers: int) -> int:
    """Random numbers that make so many uniform ones: four of a word where there are many."""
    return numbers if numbers < 2**12 else math.ceil(numbers / 4) + 1


class TestMutations:
    """The guard finds what it is there to find."""

    def grown(self, kept: dict[str, Any], action: str, name: str) -> str:
        found = self.found(action, name)
        return "\n".join(grown(found, kept[action][name]))

    def found(self, action: str, name: str) -> Work:
        torch.manual_seed(0)
        x = torch.randn(guard.BATCH["mlp"], 784)
        return work_of(action == "mlp-step", MLP, x, methods=(name,))[name]

    def test_without_a_change_nothing_is_found(self, kept: dict[str, Any]) -> None:
        assert not self.grown(kept, "mlp-step", "gflowout")
        assert not self.grown(kept, "mlp-predict", "gflowout")

    def test_masks_drawn_twice(self, kept: dict[str, Any], monkeypatch: Any) -> None:
        once = Noise.uniform

        def twice(self: Noise, rows: int, units: int, like: Tensor) -> Tensor:
            once(self, rows, units, like)
            return once(self, rows, units, like)

        monkeypatch.setattr(Noise, "uniform", twice)
        for name in ("mc", "id-gflowout", "gflowout"):
            for action in ("mlp-step", "mlp-predict"):
                assert "random_numbers: " in self.grown(kept, action, name)

    def test_an_extra_pass(self, kept: dict[str, Any], monkeypatch: Any) -> None:
        run = drawing.Runner.run

        def again(self: drawing.Runner, draw: Any, trajectory: Any) -> Any:
            with torch.no_grad():
                self.call.backbone(*self.call.args, **self.call.kwargs)
            return run(self, draw, trajectory)

        monkeypatch.setattr(drawing.Runner, "run", again)
        assert self.found("mlp-predict", "mc").passes == 2
        for name in ("mc", "gflowout"):
            told = self.grown(kept, "mlp-step", name)
            assert "flops: " in told
            assert "products: " in told

    def test_every_copy_through_every_layer(self, kept: dict[str, Any], monkeypatch: Any) -> None:
        """Neither parting at the first site nor keeping what is before it."""
        never = property(lambda _: False, lambda *_: None)
        monkeypatch.setattr(drawing.CallSpec, "parts_at_first_site", never)
        monkeypatch.setattr(drawing, "Prefix", lambda spec: None)
        assert "flops: " in self.grown(kept, "mlp-predict", "mc")
        assert self.found("mlp-predict", "mc").rows["hidden.0.linear"] == DRAWS * 128

    def test_a_second_copy_of_the_batch(self, kept: dict[str, Any], monkeypatch: Any) -> None:
        apply = gfo.Site.apply

        def copied(self: Any, activation: Tensor, *args: Any) -> Tensor:
            return apply(self, activation, *args).clone()

        monkeypatch.setattr(gfo.Site, "apply", copied)
        assert "allocated: " in self.grown(kept, "mlp-predict", "gflowout")

    def test_generators_called_once_per_draw(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(drawing, "FOLDED_ELEMENTS", 1)
        assert self.found("mlp-predict", "gflowout").calls == 2 * DRAWS


class TestMemory:
    @pytest.mark.parametrize("name", MEMORY_METHODS)
    def test_500_draws_take_little_more_than_20(self, name: str) -> None:
        """At the default chunk, besides the result of 2.6 MB, and mostly with it, too."""
        torch.manual_seed(0)
        x = torch.randn(128, 784)
        model = models(MLP, x, methods=(name,))[name]
        few, many = (count(prediction(model, x, draws), model) for draws in (20, 500))
        result = 128 * 10 * 4
        assert many.peak - 500 * result <= 1.2 * (few.peak - 20 * result)
        # With shared masks, passes are so small that the result is most of it.
        bound = 1.4 if name == "id-gflowout" else 1.2
        assert many.peak <= bound * few.peak, f"{many.peak:,} bytes, {few.peak:,} with 20 draws"
        # So do passes and work: the first layer once, the rest in proportion.
        assert many.rows["hidden.0.linear"] == few.rows["hidden.0.linear"] == 128
        assert many.rows["output"] == 25 * few.rows["output"]
        assert many.flops <= 25 * few.flops
        assert many.operations <= 2.2 * 25 * few.operations

    def test_masks_drawn_ahead_do_not_grow_with_the_draws(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(2, 784)
        model = models(MLP, x, methods=("id-gflowout",))["id-gflowout"]
        seen: list[int] = []
        ahead = model.method.draw_ahead

        def watched(trajectory: Any) -> Any:
            seen.append(trajectory.copies)
            return ahead(trajectory)

        model.method.draw_ahead = watched  # type: ignore[method-assign]
        whole = model.predict(x, samples=150, chunk=20, generator=torch.Generator().manual_seed(1))
        assert seen == [80, 70]
        for chunk in (150, 7, None):
            again = torch.Generator().manual_seed(1)
            other = model.predict(x, samples=150, chunk=chunk, generator=again)
            torch.testing.assert_close(other.samples, whole.samples)

    @pytest.mark.parametrize("shape", [(30_000, 10), (64, 700, 10), (66, 3, 3_000), (70_001, 3)])
    def test_probabilities_are_those_of_the_whole(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        output = torch.randn(shape)
        probabilities = gfo.Categorical(shape[-1]).samples(output)
        torch.testing.assert_close(probabilities, output.softmax(-1))
        whole = output.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)
        assert torch.equal(probabilities, whole)
        assert probabilities.stride() == whole.stride()
        work = count(lambda: gfo.Categorical(shape[-1]).samples(output))
        part = 4 * max(2**17, 64 * shape[-1])
        assert work.peak <= 4 * output.numel() + 3 * part

    @pytest.mark.parametrize("shape", [(500, 128, 10), (601, 333, 3), (40_000, 5, 2)])
    def test_the_mean_needs_no_probabilities_of_all_samples(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        outputs, likelihood = torch.randn(shape), gfo.Categorical(shape[-1])
        work = count(lambda: gfo.Predictive(outputs, likelihood).mean)
        assert work.peak < 0.9 * 4 * outputs.numel()
        mean = gfo.Predictive(outputs, likelihood).mean
        torch.testing.assert_close(mean, outputs.softmax(-1).mean(0))
        known = gfo.Predictive(outputs, likelihood)
        torch.testing.assert_close(known.samples.mean(0), known.mean)

    def test_a_gradient_passes_through_many_probabilities(self) -> None:
        output = torch.randn(30_000, 10, requires_grad=True)
        (gradient,) = torch.autograd.grad(gfo.Categorical(10).samples(output)[:, 0].sum(), output)
        (expected,) = torch.autograd.grad(output.softmax(-1)[:, 0].sum(), output)
        torch.testing.assert_close(gradient, expected)


class TestCount:
    """The counter itself, against sums by hand."""

    def test_memory_of_tensors_that_come_and_go(self) -> None:
        def action() -> Tensor:
            first = torch.zeros(1000)  # 4,000 bytes
            second = first + 1  # 8,000 at once
            first.mul_(2)  # in place: nothing new
            view = second.view(10, 100)  # nothing new
            del first, second  # the view holds 4,000
            third = torch.cat([view, view])  # 12,000 at once
            del view  # 8,000
            return third[:1]  # holds them all

        work = count(action)
        assert (work.allocated, work.peak, work.returned) == (16_000, 12_000, 8_000)

    def test_random_numbers_of_all_kinds(self) -> None:
        def action() -> None:
            torch.rand(3, 4)  # 12
            torch.empty(5).bernoulli_(0.5)  # 5
            torch.empty(7, dtype=torch.int64).random_()  # 7
            torch.randn(2, generator=torch.Generator().manual_seed(0))  # 2
            torch.randperm(6)  # 6
            torch.bernoulli(torch.full((8,), 0.5))  # 8
            nn.functional.dropout(torch.zeros(9), 0.5)  # 9

        assert count(action).random_numbers == 49

    def test_forward_and_backward(self) -> None:
        layer, x = nn.Linear(5, 3), torch.randn(2, 5, requires_grad=True)
        forward = count(lambda: layer(x))
        assert (forward.products, forward.flops) == (1, 2 * 2 * 5 * 3)
        both = count(lambda: layer(x).sum().backward())
        assert (both.products, both.flops) == (3, 3 * 2 * 2 * 5 * 3)
        images = torch.randn(2, 3, 8, 8)
        conv = nn.Conv2d(3, 4, 3, padding=1)
        assert count(lambda: conv(images)).flops == 2 * (2 * 8 * 8) * 4 * (3 * 9)

    def test_tensors_that_know_what_to_do(self) -> None:
        """Masks that a layer takes into its weights: 4 of 6 units for 8 rows, 5 outputs."""
        batch, masks, layer = torch.randn(8, 6), torch.ones(4, 6), nn.Linear(6, 5)
        with torch.no_grad():
            work = count(lambda: layer(SharedProduct(batch, masks)))
        assert (work.products, work.flops) == (1, 2 * 8 * 6 * 20)
        weights, found, result = 4 * 20 * 6, 4 * 8 * 20, 4 * 4 * 8 * 5
        assert (work.allocated, work.returned) == (weights + found + result, result)

    def test_the_same_again(self) -> None:
        x = torch.randn(4, 784)
        model = models(MLP, x, methods=("gflowout",))["gflowout"]
        assert count(prediction(model, x), model) == count(prediction(model, x), model)

    def test_what_is_handed_out_is_not_counted_as_run(self) -> None:
        x = torch.randn(2, 3, 8, 8)
        model = models(lambda: ResNet18(10, 2), x, methods=("mc",))["mc"]
        work = count(lambda: model.predict(x, samples=4, chunk=1), model)
        assert work.passes == 4
        assert work.rows["conv1"] == 2
        assert work.rows["fc"] == 8

    def test_a_network_inside_another_is_one_call(self) -> None:
        x = torch.randn(4, 784)
        model = models(MLP, x, methods=("gflowout",))["gflowout"]
        assert count(prediction(model, x), model).calls == 2

    @pytest.mark.parametrize("collecting", [True, False])
    def test_all_is_put_back(self, collecting: bool) -> None:
        x = torch.randn(4, 784)
        model = models(MLP, x, methods=("gflowout",))["gflowout"]

        def fail() -> None:
            model.predict(x)
            raise RuntimeError("on purpose")

        before = gc.isenabled()
        (gc.enable if collecting else gc.disable)()
        try:
            with pytest.raises(RuntimeError, match="on purpose"):
                count(fail, model)
            assert gc.isenabled() == collecting
        finally:
            (gc.enable if before else gc.disable)()
        assert not any("forward" in module.__dict__ for module in model.modules())
        assert not model.backbone._forward_pre_hooks


def test_a_table_for_people() -> None:
    tables = {table.name: table for table in work_tables(2)}
    assert list(tables) == [
        "work-mlp-step",
        "work-mlp-predict",
        "work-resnet-step",
        "work-resnet-predict",
    ]
    further = tables["work-mlp-predict"].further
    assert further is not None
    found = further({}, {})
    assert list(found) == [BARE, *METHODS]
    assert found[BARE]["passes"] == DRAWS
    assert found["gflowout"]["passes"] == 1
    # 784-300-100-10, the first layer once, both products of a multiplication and an addition
    rest = DRAWS * 128 * 2 * (300 * 100 + 100 * 10)
    assert found["mc"]["MFLOP"] == pytest.approx((128 * 2 * 784 * 300 + rest) / 1e6)
