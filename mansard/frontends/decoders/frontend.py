"""The frontend of decoder checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class DecoderFrontend(Frontend):
    """Options are the fields of `mansard.frontends.decoders.decoder.DecoderOptions`."""

    name = "decoder"
    reads = "decoder language models (Hugging Face folder, .gguf file)"
    requires = "mansard[lm]"
    options = ("context", "length", "sequences", "dtype", "cache_dtype", "role", "all_logits", "unpack")

    def accepts(self, model: Any) -> bool:
        """A folder with a ``config.json``, or a ``.gguf`` file."""
        if has_suffix(model, ".gguf"):
            return True
        if not isinstance(model, Path) and not (isinstance(model, str) and "\n" not in model):
            return False
        try:
            return (Path(model) / "config.json").is_file()
        except (OSError, ValueError):  # a text that no path can be
            return False

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Describe the checkpoint's architecture and build its Graph; weights stay in its files."""
        from mansard.frontends.decoders.checkpoint import open_checkpoint
        from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
        from mansard.frontends.decoders.families import describe

        if example_inputs is not None:
            raise ImportModelError(
                "a checkpoint states its shapes; it takes no example inputs "
                "(context=, length= and sequences= choose them)"
            )
        checkpoint = open_checkpoint(model)
        architecture = describe(checkpoint.config)
        options.setdefault("context", architecture.max_positions)
        return build_decoder(checkpoint, architecture, DecoderOptions(**options))


FRONTEND = DecoderFrontend()
