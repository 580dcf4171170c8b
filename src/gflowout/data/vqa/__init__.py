"""Visual question answering: three data sets of questions about pictures in one form.

``load`` gives training, validation and test sets with vocabularies from training alone;
``VQABatches`` makes batches of them; ``v2``, ``rad`` and ``easy`` read the published files;
``accuracy`` is the official measure.
"""

from gflowout.data.vqa.answers import (
    TYPES,
    Answers,
    Counts,
    accuracy,
    by_type,
    count_accuracy,
    normalise,
    question_accuracy,
    soft_scores,
)
from gflowout.data.vqa.datasets import SOURCES, easy, rad, v2
from gflowout.data.vqa.inputs import Regions, Tokenizer
from gflowout.data.vqa.pipeline import VQABatches, VQASplit, load, summarise
from gflowout.data.vqa.sets import VQASet

__all__ = [
    "SOURCES",
    "TYPES",
    "Answers",
    "Counts",
    "Regions",
    "Tokenizer",
    "VQABatches",
    "VQASet",
    "VQASplit",
    "accuracy",
    "by_type",
    "count_accuracy",
    "easy",
    "load",
    "normalise",
    "question_accuracy",
    "rad",
    "soft_scores",
    "summarise",
    "v2",
]
