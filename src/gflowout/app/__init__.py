"""From a configuration to a trained model, its scores and its predictions (extra ``studies``)."""

from __future__ import annotations

from gflowout.core.optional import require

for _module in ("pydantic", "yaml"):
    require(_module, extra="studies", purpose="gflowout.app")
