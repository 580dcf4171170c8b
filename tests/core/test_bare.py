"""With torch and safetensors alone everything imports, and what needs more says what to install."""

import subprocess
import sys
import textwrap

BLOCKED = (
    *("accelerate", "duckdb", "filelock", "lightning", "matplotlib", "numpy", "onnx"),
    *("onnxruntime", "onnxscript", "optuna", "pandas", "PIL", "pooch"),
    *("pyarrow", "pydantic", "ray", "requests", "rich", "scipy", "sklearn", "tensorboard"),
    *("torchmetrics", "transformers", "typer", "yaml"),
)

PACKAGES = (
    "gflowout",
    "gflowout.backbones",
    "gflowout.bench",
    "gflowout.calibration",
    "gflowout.cli",
    "gflowout.conformal",
    "gflowout.ood",
    "gflowout.selective",
    "gflowout.data",
    "gflowout.data.batches",
    "gflowout.data.clinical",
    "gflowout.data.corruptions",
    "gflowout.data.download",
    "gflowout.data.images",
    "gflowout.data.shifts",
    "gflowout.data.splits",
    "gflowout.data.transforms",
    "gflowout.data.vqa",
    "gflowout.core.distributed",
    "gflowout.export",
    "gflowout.core.inclusion",
    "gflowout.integrations",
    "gflowout.runs",
    "gflowout.training",
    "gflowout.tuning",
)


def run(code: str) -> str:
    """Run code where nothing but the core's dependencies can be imported."""
    start = f"""
        import sys, warnings
        warnings.filterwarnings("ignore")

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {BLOCKED!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Refuse())
    """
    whole = textwrap.dedent(start) + textwrap.dedent(code)
    ended = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_package_imports() -> None:
    run(f"import importlib\nfor name in {PACKAGES!r}:\n    importlib.import_module(name)")


def test_what_is_missing_is_named_with_its_extra() -> None:
    told = run(
        """
        import importlib, torch, gflowout as gfo
        from gflowout import training
        from gflowout.data import images, clinical
        from gflowout.core.optional import MissingExtraError

        net = torch.nn.Sequential(torch.nn.Linear(4, 3))
        model = gfo.wrap(
            net, "mc", ["0"], likelihood=gfo.Categorical(3), example=(torch.zeros(2, 4),)
        )
        for call in (
            lambda: training.fit(model, [(torch.zeros(2, 4), torch.zeros(2).long())]),
            lambda: training.MaskedModule,
            lambda: images.load_images("mnist", "train"),
            lambda: importlib.import_module("gflowout.integrations.sklearn"),
            lambda: gfo.Inclusion(torch.ones(1, 2, 1, 3)).plot(),
            lambda: importlib.import_module("gflowout.integrations.lightning"),
            lambda: importlib.import_module("gflowout.integrations.huggingface"),
        ):
            try:
                call()
            except MissingExtraError as error:
                print(error)
        """
    )
    lines = told.splitlines()
    assert len(lines) == 7
    assert all("pip install -e '.[" in line for line in lines)
    assert "needs lightning: pip install -e '.[train]'" in lines[0]
    assert "needs scikit-learn: pip install -e '.[sklearn]'" in lines[3]
    assert "needs lightning: pip install -e '.[train]'" in lines[5]
    assert "needs transformers: pip install -e '.[huggingface]'" in lines[6]


def test_models_are_trained_saved_and_loaded() -> None:
    told = run(
        """
        import os, tempfile, torch, gflowout as gfo

        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        net = lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
        how = {"likelihood": gfo.Categorical(3), "example": (x[:2],)}
        for method in (gfo.GFlowOut(), gfo.IDGFlowOut(train_size=8), "mc"):
            model = gfo.wrap(net(), method, ["0"], **how)
            model(x, y=y).total.backward()
            source = lambda: torch.Generator().manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.safetensors")
                gfo.save(model, path)
                again = gfo.load(path, net())
            expected = model.predict(x, generator=source()).samples
            print(torch.equal(again.predict(x, generator=source()).samples, expected))
        """
    )
    assert told.split() == ["True"] * 3


def test_the_command_says_what_it_needs() -> None:
    told = run(
        """
        from gflowout.cli import main
        try:
            main()
        except SystemExit as end:
            print(end.code)
        """
    )
    assert "the gflowout command needs typer: pip install -e '.[cli]'" in told
