"""Deployment: a model with its draws and scores as one ONNX or torch-export file.

``export`` writes it, ``read_metadata`` says what is in it. Importing this package needs the core
alone; ONNX (extra ``onnx``) is asked for when a file of that format is made.
"""

from __future__ import annotations

from gflowout.export.deployed import Deployed, ExportError
from gflowout.export.formats import FORMATS
from gflowout.export.writing import Exported, Port, export, read_metadata

__all__ = ["FORMATS", "Deployed", "ExportError", "Exported", "Port", "export", "read_metadata"]
