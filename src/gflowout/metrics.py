from gflowout.app.metrics import *  # noqa: D100, F403
