"""Why an op has no named form."""

from __future__ import annotations


class NotRaised(Exception):  # noqa: N818 - it is no error: the op runs elsewhere
    """The op has no named form, for the reason that the exception's text gives."""
