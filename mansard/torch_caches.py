"""The caches of ``transformers`` as structures of tensors: models take and return them."""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import Any

_registered: set[type] = set()


def register_caches() -> None:
    """Tell PyTorch how caches are taken apart and put together, where ``transformers`` is imported.

    A ``DynamicCache`` has the form that ``transformers.integrations.executorch`` gives it, but is put
    together without computing: tensors that a cache makes for itself would become constants of a program
    while that is decomposed. An ``EncoderDecoderCache`` is a pair of caches.
    """
    caches: Any = sys.modules.get("transformers.cache_utils")
    if caches is None or caches.DynamicCache in _registered:
        return
    from torch.utils import _pytree as pytree
    from transformers.integrations import executorch

    executorch.register_dynamic_cache_export_support()  # also tells torch.fx how to match one
    registered = pytree.SUPPORTED_NODES[caches.DynamicCache]
    _replace(caches.DynamicCache, registered.flatten_fn, lambda parts, layout: _cache(caches, parts, layout))
    pair = getattr(caches, "EncoderDecoderCache", None)
    if pair is not None and pair not in pytree.SUPPORTED_NODES:
        parts = ("self_attention_cache", "cross_attention_cache")
        pytree.register_pytree_node(
            pair,
            lambda cache: ([getattr(cache, part) for part in parts], None),
            lambda children, context: pair(*children),
            serialized_type_name=_name(pair),
            flatten_with_keys_fn=lambda cache: (
                [(pytree.GetAttrKey(part), getattr(cache, part)) for part in parts],
                None,
            ),
        )
    _registered.add(caches.DynamicCache)


def _replace(cls: type, flatten: Any, unflatten: Any) -> None:
    from torch.utils import _pytree as pytree

    with_keys = pytree.SUPPORTED_NODES[cls].flatten_with_keys_fn
    pytree._deregister_pytree_node(cls)
    pytree.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=_name(cls), flatten_with_keys_fn=with_keys
    )


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _length(kept: Any, window: int) -> int | None:
    """How many positions a windowed layer has seen, of which ``kept`` are left. None, with which nothing can
    be computed, where it may be any number: the cache must not go on at a wrong position."""
    return kept if isinstance(kept, int) and kept < window - 1 else None


def _cache(caches: Any, parts: Any, context: Any) -> Any:
    """A ``DynamicCache`` of the tensors of its layers; ``context`` is their names, and the layers'
    windows."""
    names, windows = context
    tensors = dict(zip(names, parts, strict=True))
    cache = caches.DynamicCache()
    for keys, values, window in zip_longest(tensors["key_cache"], tensors["value_cache"], windows):
        layer = caches.DynamicLayer() if window is None else caches.DynamicSlidingWindowLayer(window)
        if keys is not None:
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
            if window is not None:
                layer.cumulative_length = _length(keys.shape[-2], window)
        cache.layers.append(layer)
    return cache
