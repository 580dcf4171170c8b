"""The ``gflowout`` command; imports with the core's dependencies alone, to name a missing extra."""

from __future__ import annotations

import sys

from gflowout.core.optional import MissingExtraError, require


def main() -> None:
    """Run the command line; exit with 1 if an extra is missing, 130 after Ctrl-C."""
    try:
        for module in ("typer", "rich"):
            require(module, extra="cli", purpose="the gflowout command")
        from gflowout.cli.commands import app

        app()
    except MissingExtraError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
