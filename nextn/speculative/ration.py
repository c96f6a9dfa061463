"""What a controller may spend: time to think, and time to try something else than the best. Pure."""

from __future__ import annotations

# Shares of the time that go into trials: at last, and in the beginning, when all is new.
_TRIAL_SHARE, _FIRST_SHARE, _SETTLING = 0.003, 0.01, 40
_PURSE = 64.0  # usual steps' worth of time that may be put aside at most
_SECONDS_GAIN = 0.05  # of the moving average


class Ration:
    """seconds: of a step, usually. purse: seconds put aside for trials."""

    def __init__(self, share: float, plan: float, each: float, stretch: int, trial: int) -> None:
        """plan, each: seconds that a plan takes, and for each request, as measured in CPython; share: of the
        time, that may go there. stretch, trial: steps that a plan is for, and a trial."""
        self._share, self._plan, self._each = share, plan, each
        self._stretch, self._trial = stretch, trial
        self.seconds = self.purse = 0.0
        self._thought = 0.0  # seconds of thinking that are allowed; below 0: the next are to be waited for
        self._plans = 0

    def step(self, seconds: float) -> None:
        """One has passed."""
        self._thought += self._share * seconds
        self.seconds += _SECONDS_GAIN * (seconds - self.seconds)
        share = _TRIAL_SHARE + _FIRST_SHARE / (1.0 + self._plans / _SETTLING)
        self.purse = min(_PURSE * self.seconds, self.purse + share * seconds)

    def may_think(self) -> bool:
        return self._thought >= 0.0

    def due(self, steps: int, trial: bool, planned: int, requests: int) -> bool:
        """Is it time for a plan, so many steps after one for `planned` requests, with so many now? Until the
        thinking is paid off a stretch goes on, but not a trial: no more was put aside for that."""
        if trial and steps > self._trial:
            return True
        if not self.may_think():
            return False
        return steps > self._stretch or abs(requests - planned) * 8 > planned

    def think(self, requests: int) -> None:
        """A plan was made for so many."""
        self._thought = min(0.0, self._thought) - self._plan - self._each * requests
        self._plans += 1

    def within_reach(self, price: float) -> bool:
        """Can so much ever be put aside?"""
        return price <= _PURSE * self.seconds
