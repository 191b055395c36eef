"""Which proposer a model gets, and whether the two fit."""

from __future__ import annotations

from mansard.arguments import integer, shown
from mansard.errors import InputError
from mansard.language.speculation.draft import DraftModel
from mansard.language.speculation.lookup import TextLookup
from mansard.language.speculation.opened_model import OpenedModel
from mansard.language.speculation.speculation import Speculation

LOOKUP = "ngram"
"""The name of proposals from the text so far."""


def open_speculation(target: OpenedModel, draft: OpenedModel | str) -> Speculation:
    """What proposes tokens to a model: a smaller one, or `LOOKUP`. A draft that has none of the model's
    devices runs ahead of it.

    Raises InputError for a model that was compiled without ``verify``, for a draft with another vocabulary,
    and for one whose sequences cannot go back.
    """
    most = target.description.proposals
    if not most:
        raise InputError(
            "the model was compiled without the verification of proposals: give load_lm its checkpoint and "
            "the draft, and save that"
        )
    if isinstance(draft, str):
        if draft != LOOKUP:
            raise InputError(f"draft={shown(draft)} is neither a language model nor {LOOKUP!r}")
        return Speculation(TextLookup(), most)
    if draft.description.vocabulary != target.description.vocabulary:
        raise InputError(
            f"the draft model has a vocabulary of {draft.description.vocabulary} tokens, the model one of "
            f"{target.description.vocabulary}: they have to be the same"
        )
    both = draft.device_names() & target.device_names()
    return Speculation(DraftModel(draft, ahead=not both), most)


def window_length(speculation: Speculation | None, speculate: bool | int | None) -> int | None:
    """The proposals of each window that ``speculate`` asks for: 0 for none, None for as many as pay.

    Raises InputError for a model without a draft, and for more than it verifies.
    """
    if speculate is None or speculate is False:
        return None if speculation is not None and speculate is None else 0
    if speculation is None:
        raise InputError("the model has no draft to speculate with (load_lm(…, draft=…))")
    if speculate is True:
        return None
    length = integer("speculate", speculate, InputError)
    if not 0 <= length <= speculation.most:
        raise InputError(f"speculate={length} is outside 0 to {speculation.most}, the proposals it verifies")
    return length
