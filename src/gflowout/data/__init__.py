"""Data sets of the paper in their published formats: loaders, shifts, splits, transforms, batches.

Images are torch tensors in memory, uint8 [N, C, H, W], labels int64 [N]. Importing this package
needs torch only; loaders need the extra ``data`` when they run.
"""
