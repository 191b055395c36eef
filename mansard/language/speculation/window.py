"""How many tokens to propose: as many as give the most tokens a second."""

from __future__ import annotations

from collections import defaultdict, deque

SAMPLES = 5
"""Times of a kind of call that count: the median of the last ones."""
MEMORY = 0.9
"""What an acceptance counts after one more window."""
ROW_COST = 0.05
"""What a further row is assumed to add to a verification until it is measured."""


class Timings:
    """Seconds of calls by kind. The first of each is left out: it records commands."""

    def __init__(self) -> None:
        self._samples: dict[object, deque[float] | None] = defaultdict(lambda: None)

    def add(self, kind: object, seconds: float) -> None:
        """Note a call."""
        samples = self._samples[kind]
        if samples is None:
            self._samples[kind] = deque(maxlen=SAMPLES)
        else:
            samples.append(seconds)

    def get(self, kind: object) -> float | None:
        """The median time of a kind in seconds; None if it is not known."""
        ordered = sorted(self._samples.get(kind) or ())
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[~middle]) / 2 if ordered else None


class WindowLength:
    """Chooses the length of windows up to ``most`` proposals, from the share of proposals that are accepted
    and the measured times of verification (by rows), of a single step and of a proposal.

    Of ``k`` proposals that are right with probability ``a`` each, a verification gives
    ``(1 - a**(k + 1)) / (1 - a)`` tokens (Leviathan et al., 2023, arXiv:2211.17192). With ``ahead``,
    proposals of the next window are computed meanwhile and count where this one is right to its end.
    """

    def __init__(self, most: int, *, ahead: bool, free: bool) -> None:
        self.most, self._ahead, self._free = most, ahead, free
        self.timings = Timings()
        self._right, self._tried = 1.4, 2.0

    @property
    def acceptance(self) -> float:
        """The estimated probability that a proposal after right ones is right."""
        return self._right / self._tried

    def observe(self, proposed: int, accepted: int) -> None:
        """Count a window. Nothing is known of proposals behind the first wrong one."""
        self._right = MEMORY * self._right + accepted
        self._tried = MEMORY * self._tried + accepted + (accepted < proposed)

    def best(self, limit: int) -> int:
        """The length with the most tokens a second, 1 to ``limit``."""
        return max(range(1, min(limit, self.most) + 1), key=self._rate)

    def pays(self, length: int) -> bool:
        """Whether windows of that length are faster than single steps, as far as known."""
        single = self.timings.get("single")
        return single is None or self._rate(length) * single > 1.0

    def _rate(self, length: int) -> float:
        """Tokens a second; any unit where no time is known."""
        right = min(self.acceptance, 0.999)
        tokens = (1 - right ** (length + 1)) / (1 - right)
        verification = self._verification(length + 1)
        drafting = 0.0 if self._free else length * (self.timings.get("draft") or 0.1 * verification)
        if not self._ahead:
            return tokens / (verification + drafting)
        all_right = right ** (length + 1)
        beyond = max(0.0, drafting * (length + 1) / length - verification)
        return tokens / (verification + (1 - all_right) * drafting + all_right * beyond)

    def _verification(self, rows: int) -> float:
        """Seconds for a number of rows: measured, between measured neighbours, or estimated from below."""
        known = {1: self.timings.get("single") or self.timings.get(2) or 1.0}
        for count in range(2, self.most + 2):
            measured = self.timings.get(count)
            if measured is not None:
                known[count] = measured
        below = max(count for count in known if count <= rows)
        above = min((count for count in known if count >= rows), default=None)
        if above is None:
            return known[below] * (1 + ROW_COST * (rows - below))
        if above == below:
            return known[below]
        share = (rows - below) / (above - below)
        return known[below] + share * (known[above] - known[below])
