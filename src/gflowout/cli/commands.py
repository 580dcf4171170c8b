"""What ``gflowout`` can do from a terminal. Needs the extra ``cli``; commands load the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import gflowout
from gflowout.cli.console import explained, writable
from gflowout.cli.data import data
from gflowout.cli.export import register as register_export
from gflowout.cli.report import register as register_report
from gflowout.cli.study import register
from gflowout.cli.train import register as register_training

app = typer.Typer(
    name="gflowout",
    help="A learned posterior over dropout masks for any PyTorch model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gflowout {gflowout.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\n- `gflowout demo`\n\n- `gflowout demo --seeds 10 --out page.html`\n\n"
    "- `gflowout demo --quick`"
)
def demo(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds. Default: 5, quick 2.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of every run. Default: 60, quick 2.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("demo.html"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Hardly train: only to see that it works.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes, one thread each. Default: 2, quick 1.")
    ] = None,
) -> None:
    """Compare all methods on handwritten digits; print a table, write a page with pictures.

    Trains every method with several seeds on scikit-learn's digits, and measures accuracy,
    calibration and uncertainty on test digits, rotated digits and patches of photographs. Takes
    about two minutes on two cores. Nothing is downloaded.
    """
    writable(out)
    with explained():
        from gflowout.core.atomic_io import write_text
        from gflowout.report import build, html
        from gflowout.studies import demo, demo_section

        settings = demo.Settings(
            seeds=seeds or (2 if quick else 5),
            epochs=epochs or (2 if quick else 60),
            jobs=jobs or (1 if quick else min(2, os.cpu_count() or 1)),
            quick=quick,
        )
        sections = demo_section.run(settings)
        report = build.of_sections(
            sections, demo_section.INTRO, range(settings.seeds), [settings.command]
        )
        write_text(out, html.page(report, demo_section.TITLE))
        typer.echo(f"\nPictures and explanations: {out}")


@app.command(
    epilog="Examples:\n\n- `gflowout bench`\n\n- `gflowout bench --quick --out bench.json`\n\n"
    "- `gflowout bench --only work --only memory`\n\n- `gflowout bench --resume`"
)
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds, in two minutes.")] = False,
    width: Annotated[
        int, typer.Option(min=1, help="Channels of the first stage of ResNet-18.")
    ] = 64,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds of every measurement.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file. Default: bench.json.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture to write. Default: like --out, with .png.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Table, or group such as work; may be repeated. Default: all."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the tables that the JSON file has already.")
    ] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="CPU time, for a machine that does other work, too.")
    ] = False,
) -> None:
    """Measure what every method costs, relative to the bare backbone, and compare with the targets.

    Takes about an hour on one core. The JSON file is written after each table; what an
    interrupted run has measured is kept by `--resume`.
    """
    for path, option in ((out, "--out"), (plot, "--plot")):
        if path is not None:
            writable(path, option)
    with explained(ValueError):
        from gflowout import bench as benchmark

        benchmark.run(
            quick=quick,
            width=width,
            repeats=repeats,
            out=out,
            plot=plot,
            only=only or (),
            resume=resume,
            cpu=cpu,
        )


register_training(app)
register_export(app)

study = typer.Typer(help="Studies that tell what to trust.", no_args_is_help=True)
app.add_typer(study, name="study")
register(app, study)
register_report(app)
app.add_typer(data, name="data")


@study.callback()
def _studies() -> None:
    pass


@study.command(
    epilog="Examples:\n\n- `gflowout study estimators --out found`\n\n"
    "- `gflowout study estimators --quick`"
)
def estimators(
    draws: Annotated[
        int | None, typer.Option(min=200, help="Gradients per estimator. Default: 40000.")
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder to write into.")] = Path(
        "estimators"
    ),
    seed: Annotated[int, typer.Option(help="Of networks, posteriors and draws.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Few draws, in seconds.")] = False,
) -> None:
    """Compare estimators of the gradient for a mask posterior where the exact one is known.

    Trajectory balance, ARM, REINFORCE and the relaxed estimator: bias with a confidence interval,
    variance and cost per step. Prints a table; writes a record, a table and a plot.
    """
    writable(out / "estimators.json" if out.is_dir() else out)
    with explained():
        from gflowout.studies import estimators as study

        steps = draws or (study.QUICK_STEPS if quick else study.STEPS)
        study.run(out, steps, seed, rounds=20 if quick else 200)
