from gflowout.app.config import *  # noqa: D100, F403
