"""Estimators for scikit-learn: networks with learned masks, on tables.

They follow scikit-learn's conventions in full. With ``mask_inputs=True`` they learn which features
are needed, and select them in a ``Pipeline``.
"""

from __future__ import annotations

from gflowout.core.optional import require

require("sklearn", extra="sklearn", purpose="gflowout.integrations.sklearn")

from gflowout.integrations.sklearn.estimators import GFlowOutClassifier, GFlowOutRegressor  # noqa: E402
from gflowout.integrations.sklearn.features import one_hot_groups  # noqa: E402

__all__ = ["GFlowOutClassifier", "GFlowOutRegressor", "one_hot_groups"]
