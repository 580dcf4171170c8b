"""Moved to :mod:`gflowout.studies`."""
