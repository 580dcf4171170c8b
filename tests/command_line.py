"""The command ``gflowout`` in this process, with wide lines and without colours."""

from __future__ import annotations

from typer.testing import CliRunner

from gflowout.cli import commands

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def gflowout(*arguments: object, code: int = 0) -> str:
    """Run a command that ends with this exit code; returns what it prints."""
    result = runner.invoke(commands.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output
