"""``gflowout export``: a trained model as one file for onnxruntime or torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gflowout.cli.console import writable

if TYPE_CHECKING:
    from gflowout.export import Exported, Port


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        name="export",
        epilog="Examples:\n\n- `gflowout export runs/mnist -o digits.onnx`\n\n"
        "- `gflowout export runs/mnist -o digits.pt2 --samples 50`\n\n"
        "Exit codes: 0 all is well, 1 a problem with files or the export, 2 wrong usage, "
        "130 interrupted.",
    )(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `train` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="onnx or torch-export. By default torch-export if the file ends in .pt2, else "
            "onnx.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Draws of masks, fixed in the file.")] = 20,
    masks: Annotated[
        bool, typer.Option("--masks", help="Take masks as inputs instead of a seed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not run the file and compare it with PyTorch.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference from PyTorch that is allowed.")
    ] = 1e-4,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but problems.")] = False,
) -> None:
    """Write a trained model as one file that predicts with uncertainty, without this library.

    It takes inputs as they are stored (images as bytes, rows of a table) and a seed, for batches of
    one row or more. See docs/guides/deployment.md.
    """
    from gflowout.cli.train import _told
    from gflowout.export import formats

    writable(out)
    try:
        format = formats.chosen(out, format)
    except ValueError as error:
        raise typer.BadParameter(
            str(error).removeprefix("format "), param_hint="--format"
        ) from error
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force replaces it", param_hint="--out")
    with _told():
        from gflowout.app import run as runs
        from gflowout.export import ExportError
        from gflowout.export.runs import export_run

        formats.need(format)
        trained = runs.load(run)
        try:
            done = export_run(
                trained,
                out,
                format=format,
                samples=samples,
                masks=masks,
                overwrite=force,
                check=not no_check,
                tolerance=tolerance,
            )
        except ExportError as error:
            typer.echo(f"{error}; nothing was written", err=True)
            raise typer.Exit(1) from error
        if not quiet:
            show(done)


def show(done: Exported) -> None:
    """Print what was written: inputs, outputs, size and how it compares with PyTorch."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("", "name", "type", "shape"):
        table.add_column(head, no_wrap=True)
    for kind, ports in (("input", done.inputs), ("output", done.outputs)):
        for port in ports:
            table.add_row(kind, port.name, port.dtype, _shape(port))
    Console(highlight=False, markup=False).print(table)
    size = f"{done.size / 1e6:.2f} MB" if done.size >= 1e5 else f"{done.size / 1e3:.1f} kB"
    typer.echo(f"{done.path}: {done.format}, {size}, {done.metadata['samples']} draws")
    if done.difference is None:
        typer.echo("not compared with PyTorch (--no-check)")
    else:
        typer.echo(f"largest difference from PyTorch: {done.difference:.1e}")


def _shape(port: Port) -> str:
    return f"[{', '.join(map(str, port.shape))}]"
