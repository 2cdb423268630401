"""When an instance of Rivetti et al. tells what it has measured, and what it keeps of that.

It looks at its sketches after every window of tuples. When W / F has changed little since the last
look they are stable: it sends them, and begins with empty ones. So the scheduler hears of it again
and again, also while nothing changes, and knows of each instance what it measured last. Flows do it
otherwise (`headgate.routing.instance_costs`): nothing is forgotten or sent without news.
"""

from __future__ import annotations

from headgate.routing.costs import CostSketch, SketchShape
from headgate.routing.instance_costs import Stability, change


class PaperInstance:
    """What one instance has measured since it told the scheduler; `add` says when `sent` is new."""

    is_stable = False  # it is always on its way to the next message

    def __init__(self, shape: SketchShape, settings: Stability | None = None) -> None:
        self.settings = settings or Stability()
        self.sketch, self.sent = CostSketch(shape), None
        self._snapshot: CostSketch | None = None

    sent: CostSketch | None

    def add(self, measured: CostSketch) -> bool:
        """Take in a window of tuples; True if `sent` is new."""
        self.sketch.merge(measured)
        before, self._snapshot = self._snapshot, self.sketch.copy()
        if before is None or change(self.sketch, before) > self.settings.tolerance:
            return False
        self.sent, self._snapshot = self.sketch, None
        self.sketch = CostSketch(self.sketch.shape)
        return True
