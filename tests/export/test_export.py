"""Files that predict without this library: the same answers as PyTorch, and draws of their own.

One ONNX file holds a model of every method, as members of an ensemble: making one takes seconds.
"""

from __future__ import annotations

import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from export_answers import assert_answers
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import ResNet18
from gflowout.core.optional import MissingExtraError
from gflowout.core.trajectory import Trajectory
from gflowout.export import Deployed, ExportError, deployed, export, formats, read_metadata
from gflowout.export.writing import _difference, describe

EACH = 4
"""Draws of every member."""
ENTRIES = {entry.name: entry for entry in zoo.ZOO}
SMALL = zoo.Entry(
    "small",
    lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    zoo.features(4),
    zoo.classes(),
    zoo.categorical,
    ["1"],
    [("1", 5, 1)],
)
X = SMALL.call(7, seed=3)[0][0]


def at(seed: int, x: Tensor = X) -> dict[str, Tensor]:
    return {"input": x, "seed": torch.tensor(seed)}


def opened(path: Path, format: str) -> formats.Answer:
    return formats.opened(path.read_bytes(), format)


def random_masks(module: Deployed, batch: int, seed: int = 0) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(
            2, (module.samples, batch, module.example[name].shape[-1]), generator=source
        ).float()
        for name in module.masks
    }


def inputs_of(entry: zoo.Entry, module: Deployed, batch: int) -> dict[str, Tensor]:
    """A call of another size, by the names that the file has."""
    args, kwargs = entry.call(batch, seed=9)
    other = Deployed(module.model, args, kwargs, samples=module.samples)
    return {  # an example of one row is traced as two
        name: each[:batch] if name in other.batched else each
        for name, each in other.example.items()
        if name != "seed"
    }


@pytest.fixture(scope="module")
def members() -> list[gfo.MaskedModel]:
    return [SMALL.wrap(method) for method in zoo.METHODS]


@pytest.fixture(scope="module")
def pool(members: list[gfo.MaskedModel]) -> gfo.Ensemble:
    return gfo.Ensemble(members)


@pytest.fixture(scope="module")
def written(pool: gfo.Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("export") / "pool.onnx"
    example, samples, real = SMALL.call(3)[0], EACH * len(zoo.METHODS), torch.onnx.export
    with pytest.MonkeyPatch.context() as patch:
        # Simplifying the graphs of ten models takes as long as all else; other tests do it.
        patch.setattr(torch.onnx, "export", partial(real, optimize=False))
        return export(pool, path, example, samples=samples, metadata={"about": "me"})


@pytest.fixture(scope="module")
def onnx(written: Any) -> formats.Answer:
    return opened(written.path, "onnx")


def of_member(answers: dict[str, Tensor], index: int) -> Tensor:
    return answers["samples"][EACH * index : EACH * (index + 1)]


class TestDraws:
    def test_file_predicts_as_the_model_does_under_the_same_masks(
        self, pool, members, onnx, monkeypatch: pytest.MonkeyPatch
    ):
        seen: list[Trajectory] = []

        def recorded(**fields):
            seen.append(Trajectory(**fields))
            return seen[-1]

        monkeypatch.setattr(deployed, "Trajectory", recorded)
        for batch in (1, 7):
            seen.clear()
            x = X[:batch]
            Deployed(pool, (x,), {}, samples=EACH * len(members)).run(at(11, x))
            answers = onnx(at(11, x))
            assert answers["mean"].shape == (batch, 3)
            for index, (member, trajectory) in enumerate(zip(members, seen, strict=True)):
                copies = trajectory.copies
                masks = trajectory.full_masks(copies * batch)
                masks = [mask.reshape(copies, batch, -1).expand(copies, -1, -1) for mask in masks]
                expected = member.predict(x, masks=masks).samples.expand(EACH, -1, -1)
                torch.testing.assert_close(
                    of_member(answers, index), expected, atol=1e-5, rtol=0, msg=member.method.name
                )

    def test_own_draws_have_the_distribution_of_the_models(self, members, onnx):
        runs = [onnx(at(seed)) for seed in range(1000, 1500)]
        for index, member in enumerate(members):
            name = member.method.name
            own = torch.cat([of_member(run, index) for run in runs]).double()
            source = torch.Generator().manual_seed(5)
            theirs = member.predict(X, samples=2000, generator=source).samples.double()
            error = (own.var(0) / len(own) + theirs.var(0) / len(theirs)).sqrt() + 1e-7
            assert ((own.mean(0) - theirs.mean(0)) / error).abs().max() < 4.5, name
            squares = [(each - each.mean(0)).square() for each in (own, theirs)]
            error = sum(each.var(0) / len(each) for each in squares).sqrt() + 1e-7
            assert ((squares[0].mean(0) - squares[1].mean(0)) / error).abs().max() < 4.5, name

    def test_seed_decides(self, onnx):
        first, again, other = onnx(at(1)), onnx(at(1)), onnx(at(2))
        for name, value in first.items():
            assert torch.equal(value, again[name])
        for index, method in enumerate(zoo.METHODS):
            same = torch.equal(of_member(first, index), of_member(other, index))
            # Four draws of four masks may repeat themselves.
            assert same == (method == "none") or method == "masksembles"
        assert not torch.equal(onnx(at(-(2**40)))["samples"], onnx(at(2**40))["samples"])

    def test_row_has_its_answer_whatever_comes_after(self, onnx):
        torch.testing.assert_close(
            onnx(at(4, X[:3]))["samples"], onnx(at(4))["samples"][:, :3], atol=1e-6, rtol=0
        )

    def test_shared_masks_do_not_depend_on_the_row(self, onnx):
        turned = onnx(at(4, X.flip(0)))
        for index, method in enumerate(zoo.METHODS):
            gap = of_member(onnx(at(4)), index) - of_member(turned, index).flip(1)
            shared = method in ("none", "masksembles", "id-gflowout")
            assert (gap.abs().max() < 1e-6) == shared, method

    @pytest.mark.parametrize("method", zoo.METHODS)
    def test_keep_rates(self, method: str):
        """A backbone that shows its masks: rate and scatter per unit as in predict."""
        x = torch.rand(3, 6) + 0.5
        with zoo.seeded(1):
            model = gfo.wrap(
                nn.Identity(),
                method,
                ["input"],
                likelihood=gfo.Gaussian(6),
                example=(x,),
                **zoo.needed(method),
            )
            for name, parameter in model.method.named_parameters():
                nn.init.normal_(parameter, std=0.03 if name.endswith(".moved") else 0.3)
        own = Deployed(model, (x,), {}, samples=4000).run({"input": x, "seed": torch.tensor(3)})
        theirs = model.predict(x, samples=4000, generator=torch.Generator().manual_seed(1))
        own, theirs = own["samples"] / x, theirs.samples / x
        for power in (1, 2):
            gap = (own**power).mean(0) - (theirs**power).mean(0)
            error = (((own**power).var(0) + (theirs**power).var(0)) / 4000).sqrt() + 1e-6
            assert (gap / error).abs().max() < 4.5


class TestGivenMasks:
    @pytest.fixture(scope="class")
    def archive(self, members, tmp_path_factory: pytest.TempPathFactory) -> Any:
        """All methods whose masks have one size; the combined one has a file of its own."""
        folder = tmp_path_factory.mktemp("masks")
        made = []
        for name, some in (("most", members[:-1]), ("last", members[-1:])):
            model = gfo.Ensemble(some) if len(some) > 1 else some[0]
            options = {"samples": 2 * len(some), "masks": True}
            args = SMALL.call(3)[0]
            export(model, folder / name, args, format="torch-export", check=False, **options)
            module = Deployed(model, args, {}, **options)
            made.append((some, module, opened(folder / name, "torch-export")))
        return made

    @pytest.mark.parametrize("batch", [1, 7])
    def test_same_as_predict(self, archive, batch: int):
        for some, module, answer in archive:
            masks = random_masks(module, batch)
            found = answer({"input": X[:batch], **masks})
            for index, member in enumerate(some):
                own = [mask[2 * index : 2 * index + 2] for mask in masks.values()]
                pred = member.predict(X[:batch], masks=own)
                gap = (found["samples"][2 * index : 2 * index + 2] - pred.samples).abs().max()
                assert gap < 1e-5, member.method.name

    def test_onnx(self, tmp_path: Path):
        """Also: integer ids, a site on tokens, a label per token."""
        entry = ENTRIES["tagging"]
        model, args = entry.shared("gflowout"), entry.call(3)[0]
        done = export(model, tmp_path / "m.onnx", args, masks=True, samples=3, check=False)
        module = Deployed(model, args, {}, masks=True, samples=3)
        assert [port.name for port in done.inputs] == ["ids", "masks_0"]
        for batch in (1, 5):
            masks = random_masks(module, batch)
            inputs = inputs_of(entry, module, 5)["ids"][:batch]
            found = opened(done.path, "onnx")({"ids": inputs, **masks})
            assert_answers(found, model.predict(inputs, masks=list(masks.values())))


class TestAnswers:
    @pytest.mark.parametrize(
        "name", ["mlp", "binary", "flat binary", "multi-label", "tagging", "gaussian",
                 "flat gaussian", "gaussian of two", "heteroscedastic"]
    )  # fmt: skip
    def test_those_of_predictive(self, name: str):
        entry = ENTRIES[name]
        args, kwargs = entry.call(5)
        model = entry.shared("mc")
        module = Deployed(model, args, kwargs, masks=True, samples=6)
        masks = random_masks(module, 5)
        found = module.run({**module.example, **masks})
        regression = isinstance(model.likelihood, gfo.Gaussian)
        assert ("epistemic_variance" in found) == regression
        assert ("mutual_information" in found) != regression
        assert_answers(found, model.predict(*args, masks=list(masks.values()), **kwargs))

    def test_members_keep_the_noise_that_they_learned(self):
        nets = [nn.Linear(4, 1) for _ in range(2)]
        pool = gfo.Ensemble(nets, likelihood=gfo.Gaussian(1), example=(X,))
        for number, member in enumerate(pool.members):
            nn.init.constant_(member.likelihood.log_variance, float(number))
        found = Deployed(pool, (X,), {}, samples=2).run(at(0))
        assert_answers(found, pool.predict(X))

    def test_scale_gives_the_units_of_the_labels(self):
        entry = ENTRIES["gaussian"]
        args, _ = entry.call(5)
        model = entry.shared("mc")
        plain = Deployed(model, args, {}, samples=8)
        scaled = Deployed(model, args, {}, samples=8, scale=(100.0, 3.0))
        one, other = plain.run(plain.example), scaled.run(plain.example)
        torch.testing.assert_close(other["mean"], one["mean"] * 3 + 100)
        torch.testing.assert_close(
            other["samples"].var(0, correction=0), other["epistemic_variance"]
        )
        torch.testing.assert_close(other["variance"], one["variance"] * 9, rtol=1e-4, atol=1e-4)


class BatchNormed(nn.Module):
    """What it says of an example depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        return self.head(torch.tanh(hidden - hidden.mean(0)))


class Text(nn.Module):
    """Words whose average is taken over real positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.fc = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc(self.embed(ids)))
        return self.head((hidden * real.unsqueeze(-1)).sum(1))


OF_OUR_OWN = {
    "depends on the batch": zoo.Entry(
        "", BatchNormed, zoo.features(4), zoo.classes(), zoo.categorical, ["fc"], ()
    ),
    "resnet18": zoo.Entry(
        "", lambda: ResNet18(3, 1, "conv-bn", 1), zoo.features(1, 8, 8), zoo.classes(),
        zoo.categorical, ["layer3.1.bn2", "layer4.0.bn2"], (),
    ),
    "resnet18, bn-conv": zoo.Entry(
        "", lambda: ResNet18(3, 1, "bn-conv", 1), zoo.features(1, 8, 8), zoo.classes(),
        zoo.categorical, ["layer4.0.conv2"], (),
    ),
}  # fmt: skip


class TestBackbones:
    @pytest.mark.parametrize(
        "name",
        ["depends on the batch", "resnet18", "resnet18, bn-conv", "dict input", "keyword-only",
         "vit"],
    )  # fmt: skip
    def test_traced_for_any_batch(self, name: str, tmp_path: Path):
        entry = OF_OUR_OWN.get(name) or ENTRIES[name]
        model = entry.wrap("mc")
        args, kwargs = entry.call(3)
        options = {"samples": 2, "masks": True}
        path = tmp_path / "m.pt2"
        export(model, path, kwargs or args, format="torch-export", check=False, **options)
        module = Deployed(model, args, kwargs, **options)
        answer = opened(path, "torch-export")
        for batch in (1, 5):
            args, kwargs = entry.call(batch, seed=9)
            masks = random_masks(module, batch)
            found = answer({**inputs_of(entry, module, batch), **masks})
            assert_answers(found, model.predict(*args, masks=list(masks.values()), **kwargs))

    def test_padding_is_left_out(self, tmp_path: Path):
        ids = torch.arange(20).reshape(4, 5)
        real = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]] * 4)
        with zoo.seeded(0):
            model = gfo.wrap(
                Text(),
                "gflowout",
                ["fc"],
                likelihood=gfo.Categorical(3),
                example=(ids, real),
                padding="real",
            )
            nn.init.normal_(model.method.prior[0].blocks[0].weight)
        done = export(
            model, tmp_path / "m", (ids, real), format="torch-export", samples=8, check=False
        )
        answer = opened(done.path, "torch-export")
        other = torch.cat([ids[:, :3], ids[:, 3:].flip(0)], 1)
        calls = [{"ids": each, "real": real, "seed": torch.tensor(1)} for each in (ids, other)]
        assert torch.equal(answer(calls[0])["samples"], answer(calls[1])["samples"])


class TestFile:
    def test_metadata(self, written, pool):
        about = read_metadata(written.path)
        assert about == written.metadata
        assert (about["gflowout"], about["about"]) == (gfo.__version__, "me")
        assert [member["method"] for member in about["members"]] == list(zoo.METHODS)
        assert about["members"][0]["sites"] == [{"name": "1", "units": 5}]
        assert about["likelihood"] == {"name": "Categorical", "classes": 3}
        assert about["samples"] == sum(member["samples"] for member in about["members"])
        assert {"name": "input", "dtype": "float32", "shape": ["batch", 4]} in about["inputs"]
        assert about["scale"] is None

    def test_metadata_tells_the_scale(self):
        entry = ENTRIES["gaussian"]
        module = Deployed(entry.shared("mc"), *entry.call(3), samples=2, scale=(100.0, 3.0))
        assert describe(module, {})["scale"] == [100.0, 3.0]

    def test_says_what_it_takes_and_gives(self, written):
        import onnxruntime

        session = onnxruntime.InferenceSession(written.path)
        for ports, found in (
            (written.inputs, session.get_inputs()),
            (written.outputs, session.get_outputs()),
        ):
            assert [(port.name, list(port.shape)) for port in ports] == [
                (each.name, each.shape) for each in found
            ]
        assert written.difference < 1e-5
        assert written.size == written.path.stat().st_size

    def test_has_no_paths_of_the_machine(self, written, tmp_path: Path):
        done = export(SMALL.shared("none"), tmp_path / "a", (X,), format="torch-export")
        for path in (written.path, done.path):
            for trace in (b"site-packages", b"gflowout/", b".py"):
                assert trace not in path.read_bytes()
        assert read_metadata(done.path) == done.metadata

    def test_model_and_random_state_are_left_alone(self, tmp_path: Path):
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
        model = gfo.wrap(net, "gflowout", ["2"], likelihood=gfo.Categorical(3), example=(X,))
        model.train()
        model.backbone[0].eval()
        modes = [module.training for module in model.modules()]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        before = torch.get_rng_state()
        export(model, tmp_path / "m", (X,), format="torch-export", samples=2, check=True)
        assert torch.equal(torch.get_rng_state(), before)
        assert [module.training for module in model.modules()] == modes
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        assert all(parameter.requires_grad for parameter in model.parameters())

    def test_autocast_around_it_does_not_matter(self, tmp_path: Path):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            done = export(SMALL.shared("mc"), tmp_path / "m", (X,), format="torch-export")
        module = Deployed(SMALL.shared("mc"), (X,), {})
        assert module.run(at(1))["mean"].dtype == torch.float32
        found = opened(done.path, "torch-export")(at(1))
        torch.testing.assert_close(found, module.run(at(1)), atol=1e-6, rtol=0)

    def test_preparation_by_an_empty_module(self, tmp_path: Path):
        likelihood, empty = gfo.Categorical(3), nn.Sequential()
        model = gfo.wrap(BatchNormed(), "none", (), likelihood=likelihood, example=(X,))
        done = export(model, tmp_path / "m", (X,), format="torch-export", prepare=empty)
        assert [port.name for port in done.inputs] == ["input", "seed"]  # not "x", the backbone's


class TestErrors:
    def write(self, model: Any, path: Path, example: Any = (X,), **options: Any) -> Any:
        return export(model, path, example, **{"format": "torch-export", "samples": 2, **options})

    def test_existing_file(self, tmp_path: Path):
        path, model = tmp_path / "m", SMALL.shared("none")
        path.write_text("mine")
        with pytest.raises(FileExistsError, match="overwrite=True"):
            self.write(model, path)
        assert path.read_text() == "mine"
        self.write(model, path, overwrite=True)
        assert read_metadata(path)["members"][0]["method"] == "none"

    def test_at_the_door(self, tmp_path: Path):
        model, path = SMALL.shared("mc"), tmp_path / "m"
        with pytest.raises(ValueError, match=r"format must be one of .* did you mean 'onnx'"):
            self.write(model, path, format="onxx")
        with pytest.raises(TypeError, match=r"model must come from gfo\.wrap, got Linear"):
            self.write(nn.Linear(2, 2), path)
        with pytest.raises(ValueError, match="samples must be an integer >= 1, got 0"):
            self.write(model, path, samples=0)
        with pytest.raises(FileNotFoundError, match="no folder"):
            self.write(model, tmp_path / "none" / "m")
        with pytest.raises(IsADirectoryError):
            self.write(model, tmp_path)
        with pytest.raises(TypeError, match="path must be a string or a path, got None"):
            self.write(model, None)
        with pytest.raises(ValueError, match="scale is for regression"):
            self.write(model, path, scale=(0.0, 1.0))
        with pytest.raises(TypeError, match=r"prepare must be an nn\.Module"):
            self.write(model, path, prepare=torch.relu)
        with pytest.raises(TypeError, match=r"example must hold .* got \(ndarray\); turn arrays"):
            self.write(model, path, (X.numpy(),))
        regression = ENTRIES["gaussian"]
        for scale in ((1.0,), (1.0, 2.0, 3.0), 1.0):
            with pytest.raises((TypeError, ValueError), match=r"scale must be two numbers, .* got"):
                self.write(regression.shared("mc"), path, regression.call(3)[0], scale=scale)
        assert not list(tmp_path.iterdir())

    def test_format_follows_the_ending(self, tmp_path: Path):
        model = SMALL.shared("none")
        done = self.write(model, tmp_path / "m.PT2", format=None)
        assert done.format == "torch-export"
        assert [formats.chosen(name, None) for name in ("m", "m.onnx", "m.bin")] == ["onnx"] * 3
        with pytest.raises(ValueError, match=r"'onnx' for a path .* '\.onnx', got 'torch-export'"):
            self.write(model, tmp_path / "m.onnx")
        with pytest.raises(ValueError, match=r"'torch-export' for a path .* '\.pt2', got 'onnx'"):
            self.write(model, str(tmp_path / "m.pt2"), format="onnx")

    def test_folder_that_cannot_be_written_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        # Nothing is forbidden to root, who may run this.
        monkeypatch.setattr("gflowout.export.writing.os.access", lambda *_: False)
        monkeypatch.setattr(formats, "render", None)
        with pytest.raises(PermissionError, match=f"path: no permission .*{tmp_path.name}"):
            self.write(SMALL.shared("none"), tmp_path / "m")

    @pytest.mark.parametrize(
        ("example", "message"),
        [
            ({"xx": X}, "arguments of the backbone, got 'xx'; it takes 'input'"),
            ({"input": X, "xx": 1}, "got 'xx'; it takes 'input'"),
            ((X, X), "got a call with too many positional arguments; it takes 'input'"),
        ],
    )
    def test_arguments_that_the_backbone_does_not_take(
        self, example: Any, message: str, tmp_path: Path
    ):
        with pytest.raises(TypeError, match=message):
            self.write(SMALL.shared("none"), tmp_path / "m", example)
        with pytest.raises(TypeError, match=message.replace("the backbone", "prepare")):
            self.write(SMALL.shared("none"), tmp_path / "m", example, prepare=nn.Identity())

    def test_arguments_of_which_none_carries_the_batch(self, tmp_path: Path):
        class Any(nn.Linear):
            def forward(self, x: Tensor | None = None, **more: Tensor) -> Tensor:
                return super().forward(more["y"] if x is None else x)

        model = gfo.wrap(Any(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match=r"as that of wrap had \(x\), got y"):
            self.write(model, tmp_path / "m", {"y": X})

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"samples": 3, "about": 1}, r"metadata must leave .* got \['samples'\]; taken are .*"),
            ({"scale": 3}, r"got \['scale'\]; taken are \['format', 'gflowout', .*'outputs'\]"),
            ({"loss": float("nan")}, "metadata must hold JSON values, got .*nan"),
            ({"classes": {1, 2}}, "metadata must hold JSON values, got .*set"),
            (["classes"], "metadata must be a mapping, got list"),
        ],
    )
    def test_metadata(self, metadata: Any, message: str, tmp_path: Path):
        with pytest.raises((TypeError, ValueError), match=message):
            self.write(SMALL.shared("none"), tmp_path / "m", metadata=metadata)
        assert not list(tmp_path.iterdir())

    def test_masks_without_sites(self, tmp_path: Path):
        model = gfo.wrap(nn.Linear(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match="has none"):
            self.write(model, tmp_path / "m", masks=True)

    def test_backbone_that_draws(self, tmp_path: Path):
        class Noisy(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + torch.randn(len(x), 1)

        model = gfo.wrap(Noisy(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match="draws random numbers of its own"):
            self.write(model, tmp_path / "m")

    @pytest.mark.parametrize("code", ["len(x)", "x.tolist()"])
    def test_backbone_that_cannot_be_traced(self, code: str, tmp_path: Path):
        class Fixed(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 0 * torch.tensor(eval(code)).sum()

        model = gfo.wrap(Fixed(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match="cannot be traced"):
            self.write(model, tmp_path / "m")
        assert not list(tmp_path.iterdir())

    def test_backbone_that_looks_at_values(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
        class Looks(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) * (1 if x.sum() > 0 else 2)

        model = gfo.wrap(Looks(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        message = r"cannot be traced: the backbone or .* by values .*test_export\.py, line \d+\)"
        with pytest.raises(ExportError, match=message) as caught:
            self.write(model, tmp_path / "m")
        assert "TORCH_LOGS" not in str(caught.value)
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("rows == 9", "something else with a batch of 9: .*looks at the size"),
            ("x.numel() == 4 * 1013", "something else with a batch of 1013: "),
            ("2 * rows + 7 == 4007", "something else with a batch of 2000: "),
            ("rows % 5 == 0", "something else with a batch of 5: "),
            ("rows == 1", "something else with a batch of one row than with several: "),
        ],
    )
    def test_backbone_that_does_something_else_for_some_batches(
        self, code: str, message: str, tmp_path: Path
    ):
        class Some(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                y, rows = super().forward(x), x.shape[0]
                return 2 * y if eval(code, {"rows": rows, "x": x}) else y

        model = gfo.wrap(Some(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match=message):
            self.write(model, tmp_path / "m", check=False)
        assert not list(tmp_path.iterdir())

    def test_backbone_that_fails_on_one_row(self, tmp_path: Path):
        class Two(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if x.shape[0] == 1:
                    raise RuntimeError("two, please")
                return super().forward(x)

        model = gfo.wrap(Two(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match="fails on a batch of one row: two, please"):
            self.write(model, tmp_path / "m", check=False)

    def test_backbone_for_some_batches_only(self, tmp_path: Path):
        class Some(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                y = super().forward(x)
                return y if x.shape[0] < 100 else 2 * y

        model = gfo.wrap(Some(4, 3), "none", (), likelihood=gfo.Categorical(3), example=(X,))
        with pytest.raises(ExportError, match=r"batches of \d to 99 only"):
            self.write(model, tmp_path / "m")

    def test_file_that_differs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        real = formats.opened

        def wrong(content, format):
            answer = real(content, format)
            return lambda inputs: {**answer(inputs), "mean": answer(inputs)["mean"] + 1e-3}

        monkeypatch.setattr(formats, "opened", wrong)
        with pytest.raises(ExportError, match=r"differs from PyTorch by 0\.001 in 'mean'"):
            self.write(SMALL.shared("none"), tmp_path / "m")
        assert not list(tmp_path.iterdir())
        assert self.write(SMALL.shared("none"), tmp_path / "m", tolerance=0.01).difference > 9e-4

    def test_interrupted_writing_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def stopped(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("gflowout.export.writing.os.replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            self.write(SMALL.shared("none"), tmp_path / "m", check=False)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
    def test_missing_extra(self, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(MissingExtraError, match=rf"{missing}: pip install -e '\.\[onnx\]'"):
            self.write(SMALL.shared("none"), tmp_path / "m", format="onnx")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("limit", [100, 1000])  # less than the weights, than the file
    def test_too_large_for_onnx(self, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(formats, "_LARGEST", limit)
        with pytest.raises(ExportError, match="2 GB at most: take format="):
            self.write(SMALL.shared("none"), tmp_path / "m", format="onnx")
        assert not list(tmp_path.iterdir())

    def test_larger_than_protobuf_allows(self):
        from google.protobuf.message import EncodeError

        class Large:
            def SerializeToString(self) -> bytes:  # noqa: N802
                raise EncodeError("Failed to serialize proto")

        with pytest.raises(ExportError, match=r"more than 2 GB, .* take format="):
            formats._serialized(Large())

    def test_precision_that_onnxruntime_does_not_have(self, tmp_path: Path):
        x, net = X.bfloat16(), nn.Linear(4, 3).bfloat16()
        model = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(3), example=(x,))
        with pytest.raises(ExportError, match=r"onnxruntime cannot run .* model\.float\(\)"):
            self.write(model, tmp_path / "m", (x,), format="onnx")
        assert not list(tmp_path.iterdir())

    def test_file_that_onnxruntime_cannot_run(self):
        with pytest.raises(ExportError, match="onnxruntime cannot run the file") as caught:
            _difference(Deployed(SMALL.shared("none"), (X,), {}), b"nothing", "onnx", 1e-4)
        assert "half precision" not in str(caught.value)

    def test_not_our_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "m").write_bytes(b"nothing")
        with pytest.raises(ExportError, match="neither ONNX nor"):
            read_metadata(tmp_path / "m")
        monkeypatch.setitem(sys.modules, "onnx", None)  # said whatever is installed
        with pytest.raises(FileNotFoundError, match=r"there is no file .*none"):
            read_metadata(tmp_path / "none")
        with pytest.raises(IsADirectoryError, match="path must be a file"):
            read_metadata(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[1]", b"\xff"])
    def test_damaged_metadata(self, text: str | bytes, tmp_path: Path):
        with zipfile.ZipFile(tmp_path / "m", "w") as archive:
            archive.writestr("m/extra/gflowout.json", text)
        with pytest.raises(ExportError, match="the metadata is damaged"):
            read_metadata(tmp_path / "m")

    def test_damaged_archive(self, tmp_path: Path):
        path = tmp_path / "m"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("m/extra/gflowout.json", "{}")
        path.write_bytes(path.read_bytes().replace(b"{}", b"{]", 1))
        with pytest.raises(ExportError, match="the archive is damaged"):
            read_metadata(path)

    def test_inputs_with_names_that_are_taken(self, tmp_path: Path):
        class Mean(nn.Linear):
            def forward(self, mean: Tensor) -> Tensor:
                return super().forward(mean)

        class Seed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, seed: Tensor, masks_0: Tensor) -> Tensor:
                return self.fc(seed + masks_0)

        options = {"likelihood": gfo.Categorical(3)}
        model = gfo.wrap(Mean(4, 3), "none", (), example=(X,), **options)
        assert list(Deployed(model, (X,), {}).example) == ["input_mean", "seed"]
        model = gfo.wrap(Seed(), "mc", ["fc"], example=(X, X), **options)
        assert list(Deployed(model, (X, X), {}).example) == ["input_seed", "masks_0", "seed"]
        done = self.write(model, tmp_path / "m", (X, X), masks=True)
        names = [port.name for port in done.inputs]
        assert names == ["input_seed", "input_masks_0", "masks_0"]

    def test_example_of_one_row(self, tmp_path: Path):
        done = self.write(SMALL.shared("none"), tmp_path / "m", (X[:1],))
        answer = opened(done.path, "torch-export")
        assert answer(at(0))["mean"].shape == (7, 3)
