"""The ``gflowout`` application. Needs the extra ``cli``; commands load the rest when they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

import gflowout
from gflowout.cli import report, study, train
from gflowout.cli.data import data
from gflowout.cli.options import Commands, examples, explained, writable
from gflowout.core.atomic_io import write_text

app = typer.Typer(
    name="gflowout",
    cls=Commands,
    help="A learned posterior over dropout masks for any PyTorch model.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
studies = typer.Typer(help="Studies that compare the methods.", cls=Commands, no_args_is_help=True)


START = f"""gflowout {gflowout.__version__}: a learned posterior over dropout masks

What to do next
  gflowout demo                                  all methods on digits, about 2 minutes
  gflowout train --data patients.csv --set data.target=died --out runs/patients
                                                 a model with uncertainty for your table
  gflowout data list                             data sets to download and check
  gflowout report results/cpu -o report.html     what was measured, as a page

In Python, for your own model (net, and x, a batch of its inputs)
  import gflowout as gfo
  gfo.sites(net, "*")                            names of layers that can be masked
  model = gfo.wrap(net, "mc", ["layer1"], likelihood="classification", example=(x[:2],))

All commands: gflowout --help"""
"""What ``gflowout`` says without a command."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gflowout {gflowout.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(START)


@app.command(epilog=examples("demo", "demo --seeds 10 --out page.html", "demo --quick"))
def demo(
    seeds: Annotated[
        int | None, Option(min=1, help="Number of seeds. Default: 5, with --quick 2.")
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs of every run. Default: 60, with --quick 2.")
    ] = None,
    out: Annotated[Path, Option(help="HTML page to write.")] = Path("demo.html"),
    quick: Annotated[
        bool, Option("--quick", help="Hardly train: only to see that it works.")
    ] = False,
    jobs: Annotated[
        int | None, Option(min=1, help="Processes, one thread each. Default: 2, with --quick 1.")
    ] = None,
) -> None:
    """Compare all methods on handwritten digits; print a table and a conclusion, write a page.

    Trains every method with several seeds on scikit-learn's digits, and measures accuracy,
    calibration and uncertainty on test digits, rotated digits and patches of photographs. Takes
    about two minutes on two cores. Nothing is downloaded.
    """
    writable(out)
    typer.echo("Training all methods on handwritten digits: about two minutes on two cores.")
    with explained():
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
    epilog=examples(
        "bench",
        "bench --quick --out bench.json",
        "bench --only work --only memory",
        "bench --resume",
    )
)
def bench(
    quick: Annotated[bool, Option("--quick", help="A few rounds, in two minutes.")] = False,
    width: Annotated[int, Option(min=1, help="Channels of the first stage of ResNet-18.")] = 64,
    repeats: Annotated[int | None, Option(min=1, help="Rounds of every measurement.")] = None,
    out: Annotated[Path | None, Option(help="JSON file. Default: bench.json.")] = None,
    plot: Annotated[
        Path | None, Option(help="Picture to write. Default: the JSON file's name with .png.")
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(help="Measure this table, or group such as work, only; repeatable."),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Keep the tables that the JSON file has already.")
    ] = False,
    cpu: Annotated[
        bool, Option("--cpu", help="Measure CPU time, on a machine that does other work, too.")
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


train.register(app)
app.add_typer(studies, name="study")
study.register(app, studies)
report.register(app, studies)
app.add_typer(data, name="data")


@studies.command(epilog=examples("study estimators --out estimates", "study estimators --quick"))
def estimators(
    draws: Annotated[
        int | None, Option(min=200, help="Gradients per estimator. Default: 40000.")
    ] = None,
    out: Annotated[Path, Option(file_okay=False, help="Folder to write into.")] = Path(
        "estimators"
    ),
    seed: Annotated[int, Option(help="Seed of networks, posteriors and draws.")] = 0,
    quick: Annotated[bool, Option("--quick", help="Few draws, in seconds.")] = False,
) -> None:
    """Compare estimators of the gradient for a mask posterior where the exact one is known.

    Trajectory balance, ARM, REINFORCE and the relaxed estimator: bias with a confidence interval,
    variance and cost per step. Prints a table; writes a record, a table and a plot.
    """
    writable(out / "estimators.json" if out.is_dir() else out)
    with explained():
        from gflowout.studies import estimators as results

        steps = draws or (results.QUICK_STEPS if quick else results.STEPS)
        results.run(out, steps, seed, rounds=20 if quick else 200)
