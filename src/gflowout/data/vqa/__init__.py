"""Visual question answering: questions about pictures, in three data sets, one form for models.

``load`` gives training, validation and test sets with vocabularies from training alone;
``VQABatches`` makes batches of them; ``v2``, ``rad`` and ``easy`` read the published files;
``accuracy`` is the official measure.
"""

from gflowout.data.vqa import easy, rad, v2
from gflowout.data.vqa.accuracy import (
    TYPES,
    accuracy,
    by_type,
    count_accuracy,
    question_accuracy,
    soft_scores,
)
from gflowout.data.vqa.answers import Answers, Counts, normalise
from gflowout.data.vqa.batches import VQABatches
from gflowout.data.vqa.pipeline import SOURCES, VQASplit, load, summarise
from gflowout.data.vqa.regions import Regions
from gflowout.data.vqa.sets import VQASet
from gflowout.data.vqa.text import Tokenizer

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
