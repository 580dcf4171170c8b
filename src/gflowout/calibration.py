from gflowout.decisions.calibration import *  # noqa: D100, F403
from gflowout.decisions.calibration import __all__ as __all__
