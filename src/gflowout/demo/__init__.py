"""Moved to :mod:`gflowout.studies.demo`."""
