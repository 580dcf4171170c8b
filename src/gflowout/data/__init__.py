"""Data of the paper in their published formats: loaders, shifts, splits, transforms, batches.

Arrays in memory are torch tensors: images are uint8 [N, C, H, W], labels int64 [N]. Importing this
package needs torch only; loaders ask for the extra ``data`` when they run. Knows nothing of masks,
methods or training.
"""
