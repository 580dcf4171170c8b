"""From a configuration to a trained model, its scores and its predictions on files.

The command line and studies stand on this; it stands on data, backbones and training. Needs the
extra ``studies``.
"""

from __future__ import annotations

from gflowout.core.optional import require

for _module in ("pydantic", "yaml"):
    require(_module, extra="studies", purpose="gflowout.app")
