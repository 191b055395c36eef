"""A module whose import fails."""

import no_such_vendor  # noqa: F401
