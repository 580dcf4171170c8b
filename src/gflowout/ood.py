from gflowout.decisions.ood import *  # noqa: D100, F403
from gflowout.decisions.ood import __all__ as __all__
