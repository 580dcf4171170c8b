"""``gflowout`` without a command."""

import re

import torch
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import gflowout as gfo
from gflowout.cli import commands

runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})


def test_without_a_command_it_says_what_to_do_next():
    result = runner.invoke(commands.app, [])
    assert result.exit_code == 0
    assert result.output.strip() == commands.START
    names = set(re.findall(r"^  gflowout (\w+)", result.output, re.MULTILINE))
    assert {"demo", "train", "report"} <= names <= set(get_command(commands.app).commands)
    assert max(map(len, result.output.splitlines())) <= 90


def test_its_lines_of_python_run():
    code = [line for line in commands.START.splitlines() if re.match(r"  (import|gfo|model)", line)]
    net = nn.Sequential()
    net.add_module("layer1", nn.Linear(4, 3))
    names = {"net": net, "x": torch.zeros(3, 4)}
    for line in code:
        exec(re.split(r"\s{3,}", line.strip())[0], names)
    assert isinstance(names["model"], gfo.MaskedModel)


def test_a_command_that_does_not_exist_is_still_an_error():
    assert runner.invoke(commands.app, ["trian"]).exit_code == 2
