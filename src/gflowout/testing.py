from gflowout.core.testing import *  # noqa: D100, F403
from gflowout.core.testing import __all__ as __all__
