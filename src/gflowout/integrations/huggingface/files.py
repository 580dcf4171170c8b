"""A wrapped transformer in a folder: the backbone as ``from_pretrained`` reads it, ours beside it.

``config.json`` and ``model.safetensors`` are the backbone's, written by ``transformers``;
``gflowout.safetensors`` has what wrapping added, without the backbone's weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel

from gflowout.core import serialization
from gflowout.core.model import MaskedModel
from gflowout.integrations.huggingface.trainer import TrainerModel

FILE = "gflowout.safetensors"
"""Name of our file in the folder."""


def save_pretrained(model: MaskedModel | TrainerModel, folder: str | os.PathLike[str]) -> None:
    """Write a wrapped transformer to a folder.

    Args:
        model: From :func:`wrap_transformer`, or what ``Trainer`` trained.
        folder: Made if need be. ``AutoModel...from_pretrained(folder)`` reads the backbone alone.

    Examples:
        >>> import os, tempfile
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(
        ...     vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32, num_labels=3,
        ... )
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(model, folder)
        ...     print(sorted(os.listdir(folder)))
        ['config.json', 'gflowout.safetensors', 'model.safetensors']
    """
    masked = model.model if isinstance(model, TrainerModel) else model
    if not isinstance(masked, MaskedModel) or not isinstance(masked.backbone, PreTrainedModel):
        raise TypeError(
            "model must be a wrapped model of transformers, got "
            f"{type(model).__name__}; save others with gfo.save"
        )
    if Path(folder).exists() and not Path(folder).is_dir():
        raise NotADirectoryError(f"folder must be a folder or new, got the file {str(folder)!r}")
    # Never new weights beside old masks, whenever it is stopped.
    (Path(folder) / FILE).unlink(missing_ok=True)
    masked.backbone.save_pretrained(folder)
    serialization.save(masked, Path(folder) / FILE, backbone=False)


def load_pretrained(
    folder: str | os.PathLike[str],
    kind: type[PreTrainedModel] | None = None,
    **arguments: Any,
) -> MaskedModel:
    """Read a wrapped transformer from a folder; predictions are what they were, to the bit.

    The same as ``gfo.load(folder / "gflowout.safetensors", kind.from_pretrained(folder))``.

    Args:
        folder: Written by :func:`save_pretrained`.
        kind: Class of the backbone; ``None``: as its configuration says.
        **arguments: Of ``from_pretrained``, such as ``device_map``.

    Examples:
        >>> import tempfile
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(
        ...     vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=32, num_labels=3,
        ... )
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(model, folder)
        ...     again = load_pretrained(folder)
        >>> again.method.name
        'gflowout'
    """
    if kind is not None and not (isinstance(kind, type) and hasattr(kind, "from_pretrained")):
        raise TypeError(
            "kind must be a class of transformers, such as BertForSequenceClassification, or None, "
            f"got {kind!r}"
        )
    if not (Path(folder) / FILE).is_file():
        raise FileNotFoundError(f"folder must hold {FILE!r}, there is none in {str(folder)!r}")
    if kind is None:
        named = AutoConfig.from_pretrained(folder).architectures or ["none"]
        kind = getattr(transformers, named[0], None)
        if kind is None:
            raise ValueError(
                f"kind must be given: the configuration in {str(folder)!r} names {named[0]!r}, "
                "which is no class of transformers"
            )
    return serialization.load(Path(folder) / FILE, kind.from_pretrained(folder, **arguments))
