"""Readers of single files, one format each: a path in, tensors out, :class:`DataError` if odd.

They look at bytes and know nothing of data sets, folders or splits.
"""
