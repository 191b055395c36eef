"""How far a model's logits are from another's: to judge quantised weights.

exact, small = load_lm(path), load_lm(path, quantize="int4")
print(compare(exact, small, ids))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mansard.errors import InputError

if TYPE_CHECKING:
    from mansard.language.language_model import LanguageModel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quality:
    """The errors of logits (rows, vocabulary) against those of a reference model, over all rows."""

    largest_error: float
    """The largest absolute difference of two logits."""
    mean_error: float
    """The mean absolute difference."""
    spread: float
    """The standard deviation of the reference's logits, to compare errors with."""
    agreement: float
    """The share of rows whose most likely token is the same."""
    divergence: float
    """The mean Kullback-Leibler divergence from the reference's distribution, in nats."""
    perplexity: float | None = None
    """Of the tokens that follow, where they are known."""
    reference_perplexity: float | None = None

    def __str__(self) -> str:
        text = (
            f"logit error: largest {self.largest_error:.4g}, mean {self.mean_error:.4g} (logits spread by "
            f"{self.spread:.4g}); same token {self.agreement:.1%}; divergence {self.divergence:.3g} nats"
        )
        if self.perplexity is None:
            return text
        return f"{text}; perplexity {self.perplexity:.5g}, of the reference {self.reference_perplexity:.5g}"


def quality(logits: Array, reference: Array, following: Sequence[int] | None = None) -> Quality:
    """Compare ``logits`` (…, vocabulary) with those of a ``reference`` model for the same tokens.

    ``following`` are the tokens that follow each row, for the perplexity. Raises InputError for shapes that
    differ.
    """
    if logits.shape != reference.shape or logits.ndim < 1:
        raise InputError(f"logits of shape {logits.shape} and a reference of {reference.shape}: they differ")
    width = logits.shape[-1]
    ours, theirs = (a.reshape(-1, width).astype(np.float64) for a in (logits, reference))
    error = np.abs(ours - theirs)
    log_ours, log_theirs = _log_softmax(ours), _log_softmax(theirs)
    divergence = (np.exp(log_theirs) * (log_theirs - log_ours)).sum(-1)
    both = (None, None) if following is None else (perplexity(ours, following), perplexity(theirs, following))
    return Quality(
        float(error.max(initial=0)),
        float(error.mean()),
        float(theirs.std()),
        float((ours.argmax(-1) == theirs.argmax(-1)).mean()),
        float(divergence.mean()),
        *both,
    )


def perplexity(logits: Array, following: Sequence[int]) -> float:
    """``exp`` of the mean negative log-likelihood of the tokens ``following`` each row of logits.

    Raises InputError for another number of tokens than rows.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    if len(following) != len(rows):
        raise InputError(f"{len(following)} tokens follow {len(rows)} rows of logits: one for each is needed")
    chosen = np.take_along_axis(_log_softmax(rows.astype(np.float64)), np.asarray(following)[:, None], -1)
    return float(np.exp(-chosen.mean()))


def compare(reference: LanguageModel, model: LanguageModel, ids: Sequence[int]) -> Quality:
    """The quality of ``model`` against ``reference`` on a text of token numbers; its length is limited by the
    models' context."""
    return quality(model.logits(ids)[:-1], reference.logits(ids)[:-1], list(ids)[1:])


def _log_softmax(logits: Array) -> Array:
    moved = logits - logits.max(-1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(-1, keepdims=True)))
