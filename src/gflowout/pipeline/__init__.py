"""Moved to :mod:`gflowout.app`."""
