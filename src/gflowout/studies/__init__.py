"""Studies that tell what to trust, one file each; run as ``gflowout study NAME``."""
