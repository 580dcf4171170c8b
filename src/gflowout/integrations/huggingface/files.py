"""Files of wrapped transformers and adapters: folders that ``transformers`` and ``peft`` read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from gflowout.core import serialization
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.core.saved_file import parts_of, read
from gflowout.integrations.huggingface.adapters import base_of, is_adapted, lora_layers
from gflowout.integrations.huggingface.text import as_causal
from gflowout.integrations.huggingface.trainer import TrainerModel

FILE = "gflowout.safetensors"  # our file beside those of the backbone
ADAPTER, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # those of an adapter
_INSIDE = "base_model."  # how names of modules in a ``PeftModel`` start
DEFAULT = "default"  # name that `peft` gives an adapter, and that its folders do not show


def save_pretrained(model: MaskedModel | TrainerModel, folder: str | os.PathLike[str]) -> None:
    """Write a wrapped transformer, or its adapter, to a folder.

    ``config.json`` and ``model.safetensors`` are the backbone's, written by ``transformers``; of a
    model of ``peft`` there are ``adapter_config.json`` and ``adapter_model.safetensors``, written
    by ``peft``, without the base model. ``gflowout.safetensors`` has what wrapping added.

    Args:
        model: From :func:`wrap_transformer`, or what ``Trainer`` trained.
        folder: Made if need be. ``AutoModel...from_pretrained(folder)`` reads the backbone alone,
            ``PeftModel.from_pretrained(base, folder)`` the adapter alone. An adapter whose name is
            not "default" is in a subfolder of its name, as ``peft`` has it, and so are its masks.

    Examples:
        >>> import os, tempfile
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_labels=3)
        >>> model = wrap_transformer(BertForSequenceClassification(config))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(model, folder)
        ...     print(sorted(os.listdir(folder)))
        ...     print(load_pretrained(folder).method.name)
        ['config.json', 'gflowout.safetensors', 'model.safetensors']
        gflowout
    """
    masked = model.model if isinstance(model, TrainerModel) else model
    if not isinstance(masked, MaskedModel) or not isinstance(
        base_of(masked.backbone), PreTrainedModel
    ):
        raise TypeError(
            f"model must be a wrapped model of transformers, got {type(model).__name__}; save "
            "others with gfo.save"
        )
    adapter = _adapter_of(masked)
    path = Path(folder) / ("" if adapter in (None, DEFAULT) else adapter) / FILE
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"folder must be a folder or new, got the file {str(folder)!r}")
    # First, so that an interruption never leaves new weights beside old masks.
    path.unlink(missing_ok=True)
    own = {} if adapter is None else {"selected_adapters": [adapter]}
    backbone: Any = masked.backbone
    backbone.save_pretrained(os.fspath(folder), **own)
    serialization.save(masked, path, backbone=False)


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
        From a folder that :func:`save_pretrained` wrote::

            model = load_pretrained("runs/sst2", device_map="cpu")
    """
    if kind is not None and not (isinstance(kind, type) and hasattr(kind, "from_pretrained")):
        raise TypeError(
            "kind must be a class of transformers, such as BertForSequenceClassification, or None, "
            f"got {kind!r}"
        )
    path = Path(folder) / FILE
    if (path.parent / ADAPTER).is_file():
        raise ValueError(f"folder has an adapter, {str(folder)!r}: read it with load_adapter")
    if not path.is_file():
        raise FileNotFoundError(f"folder must hold {FILE!r}, there is none in {str(folder)!r}")
    if kind is None:
        named = AutoConfig.from_pretrained(folder).architectures or ["none"]
        kind = getattr(transformers, named[0], None)
        if kind is None:
            raise ValueError(
                f"kind must be given: the configuration in {str(folder)!r} names {named[0]!r}, "
                "which is no class of transformers"
            )
    return as_causal(serialization.load(path, kind.from_pretrained(folder, **arguments)))


def load_adapter(
    folder: str | os.PathLike[str], base: PreTrainedModel, **arguments: Any
) -> MaskedModel | nn.Module:
    """Read an adapter of ``peft`` and its masks from a folder; nothing is unpickled.

    The same as ``gfo.load(folder / "gflowout.safetensors", PeftModel.from_pretrained(base,
    folder))``, with the adapter under the name that it was saved with.

    Args:
        folder: With ``adapter_config.json`` and ``adapter_model.safetensors``, such as
            :func:`save_pretrained` and ``peft`` write.
        base: The base model, as it was before the adapter was added; ``peft`` changes it in place.
        **arguments: Of ``PeftModel.from_pretrained``, such as ``is_trainable=True``.

    Returns:
        A wrapped model; the ``PeftModel`` itself if the folder has no masks. An adapter that was
        added by ``add_adapter`` of ``transformers``, without ``peft``'s own class, is again.

    Examples:
        >>> import copy, tempfile
        >>> from peft import LoraConfig, get_peft_model
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from gflowout.integrations.huggingface import wrap_transformer
        >>> config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1)
        >>> base = BertForSequenceClassification(config)
        >>> adapted = get_peft_model(copy.deepcopy(base), LoraConfig("SEQ_CLS", r=4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(wrap_transformer(adapted), folder)
        ...     [site.units for site in load_adapter(folder, base).sites]
        [4, 4]
    """
    if not isinstance(base, nn.Module) or isinstance(base, MaskedModel):
        raise TypeError(f"base must be the bare base model, got {type(base).__name__}")
    if base_of(base) is not base or is_adapted(base):
        raise TypeError(
            f"base must be the model without adapters, got {type(base).__name__} with some: pass "
            "what unload() of peft returns, or the model as it was before"
        )
    where = Path(folder)
    for name in (ADAPTER, WEIGHTS):
        if not (where / name).is_file():
            raise FileNotFoundError(f"folder must hold {name!r}, there is none in {str(folder)!r}")
    path = where / FILE
    sites = _saved_sites(path) if path.is_file() else []
    arguments = {"adapter_name": next(_names(sites), DEFAULT), **arguments}
    peft = require("peft", extra="huggingface", purpose="load_adapter")
    adapted: nn.Module = base
    if sites and not any(site.startswith(_INSIDE) for site in sites):  # by base.add_adapter
        base.load_adapter(os.fspath(folder), **arguments)
    else:
        adapted = peft.PeftModel.from_pretrained(base, os.fspath(folder), **arguments)
    return as_causal(serialization.load(path, adapted)) if path.is_file() else adapted


def _adapter_of(model: MaskedModel) -> str | None:
    """Name of the adapter that is saved with the masks; ``None`` without ``peft``."""
    if base_of(model.backbone) is model.backbone:
        return None
    tuner: Any = model.backbone.base_model
    active = {*tuner.active_adapters}
    for layer in lora_layers(model.backbone).values():
        active |= {*layer.active_adapters} & {*layer.lora_A}
    if len(active) > 1:
        raise ValueError(
            f"model has several active adapters, {', '.join(map(repr, sorted(active)))}, and a "
            "folder has one: activate one with set_adapter and wrap again, or save with gfo.save"
        )
    return str(next(_names(site.name for site in model.sites), *active))


def _saved_sites(path: Path) -> list[str]:
    """Names of the sites of a file."""
    models, _ = read(path)
    _, sites, *_ = parts_of(models[0])
    return [site.name for site in sites]


def _names(sites: Iterable[str]) -> Iterator[str]:
    """Names of adapters in the names of sites."""
    return (site.partition(".lora_A.")[2] for site in sites if ".lora_A." in site)
