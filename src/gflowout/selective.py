from gflowout.decisions.selective import *  # noqa: D100, F403
from gflowout.decisions.selective import __all__ as __all__
