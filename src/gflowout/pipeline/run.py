from gflowout.app.run import *  # noqa: D100, F403
