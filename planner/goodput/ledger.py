"""`Ledger`: how far training came, what of it is in storage, and what a failure takes back."""

from __future__ import annotations

KEPT = ("goodput", "checkpoint", "straggler", "shrunk")
"""What time since the last checkpoint is booked under, once that is in storage."""


class Ledger:
    """Cycles of training and checkpoints of one simulated run.

    A cycle is training of `interval_s` (stretched by the pace), a wait where the checkpoint before is not in storage
    yet, and `blocked_s` of the next one, which is in storage `lag_s` after that.

    Parameters
    ----------
    seconds : dict
        Where time is booked, by name; ``rework`` takes what a failure undoes.
    """

    def __init__(self, interval_s: float, blocked_s: float, lag_s: float, seconds: dict[str, float]) -> None:
        self._interval, self._blocked, self._lag, self._seconds = interval_s, blocked_s, lag_s, seconds
        self._slow, self._whole = 1.0, 1.0
        self._since = dict.fromkeys(KEPT, 0.0)  # since the last copy was taken
        self._sent = dict.fromkeys(KEPT, 0.0)  # what that copy holds, while it is on its way
        self._upload = 0.0  # seconds until it is in storage
        self._left = interval_s  # training until the next copy
        self._saving = 0.0  # seconds of it that are left, where it is being taken

    def pace(self, slow: float, whole: float) -> None:
        """Seconds that training takes from now on: `slow` for a straggler, `whole` for missing replicas."""
        self._slow, self._whole = slow, whole

    def advance(self, elapsed: float) -> None:
        """Let the run go on for some seconds without a failure."""
        stretch = self._slow * self._whole
        while elapsed > 0.0:
            if self._left == self._interval and not self._saving and self._upload == self._lag:
                elapsed = self._whole_cycles(elapsed, stretch)
                if elapsed <= 0.0:
                    return
            if self._left > 0.0:
                need = self._left * stretch
                step = min(elapsed, need)
                trained = step / stretch
                self._book(trained, step)
                self._left = 0.0 if step == need else self._left - trained
            elif self._upload > 0.0 and not self._saving:
                step = min(elapsed, self._upload)
                self._since["checkpoint"] += step
            else:
                self._saving = self._saving or self._blocked
                step = min(elapsed, self._saving)
                self._since["checkpoint"] += step
                self._saving -= step
                if self._saving <= 0.0:
                    self._copied()
                    elapsed -= step
                    continue
            elapsed -= step
            self._transferred(step)

    def _whole_cycles(self, elapsed: float, stretch: float) -> float:
        """Book all cycles that end within `elapsed`, alike as they are; what is left of it."""
        cycle = max(self._interval * stretch, self._lag) + self._blocked
        count = int(elapsed // cycle)
        if count < 1:
            return elapsed
        self._transferred(self._lag)
        each = dict(self._since)
        self._book(self._interval, self._interval * stretch)
        each = {name: self._since[name] - each[name] for name in KEPT}
        each["checkpoint"] += cycle - self._interval * stretch
        self._since = dict.fromkeys(KEPT, 0.0)
        durable = count if not self._lag else count - 1
        for name, value in each.items():
            self._seconds[name] += durable * value
        if self._lag:
            self._sent, self._upload = each, self._lag
        return elapsed - count * cycle

    def _book(self, trained: float, took: float) -> None:
        self._since["goodput"] += trained
        self._since["straggler"] += trained * (self._slow - 1.0)
        self._since["shrunk"] += took - trained * self._slow

    def _copied(self) -> None:
        """A copy is complete: it holds everything up to now."""
        self._sent, self._since = self._since, dict.fromkeys(KEPT, 0.0)
        self._left, self._saving, self._upload = self._interval, 0.0, self._lag
        if not self._lag:
            self._stored()

    def _transferred(self, seconds: float) -> None:
        if self._upload > 0.0:
            self._upload -= seconds
            if self._upload <= 1e-9:
                self._upload = 0.0
                self._stored()

    def _stored(self) -> None:
        for name, value in self._sent.items():
            self._seconds[name] += value
        self._sent = dict.fromkeys(KEPT, 0.0)

    def commit(self) -> None:
        """Everything up to now is in storage."""
        self._stored()
        self._sent, self._since = self._since, self._sent
        self._stored()
        self._left, self._saving, self._upload = self._interval, 0.0, 0.0

    def lose(self) -> None:
        """A failure: training starts again from the last checkpoint in storage."""
        self._seconds["rework"] += sum(self._since.values()) + sum(self._sent.values())
        self._since, self._sent = dict.fromkeys(KEPT, 0.0), dict.fromkeys(KEPT, 0.0)
        self._left, self._saving, self._upload = self._interval, 0.0, 0.0
