from gflowout.decisions.conformal import *  # noqa: D100, F403
from gflowout.decisions.conformal import __all__ as __all__
