"""What `rca tune` finds: settings of each head, and the loss that they remove."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rca.lab.evaluation.intervals import Estimate
from rca.lab.evaluation.tables import TextTable
from rca.whatif.result import finite

Values = dict[str, float]
#: Smallest share of the present loss that tuning must remove before its settings replace the present ones.
MIN_GAIN = 0.02


@dataclass(frozen=True)
class TunedHead:
    """The result for one head.

    Attributes
    ----------
    groups : int
        Scenarios and incidents of the outer folds.
    present : float
        Log loss of the present settings on the outer folds, nats.
    gain : Estimate
        Log loss that tuning removes, over groups; negative if it adds some.
    chosen : dict of str to float or None
        Settings of a search over all windows; None if the gain's interval includes 0, or if the gain is
        smaller than `MIN_GAIN`.
    lacking : str
        Why the head could not be tuned; "" if it was.
    """

    name: str
    groups: int
    present: float
    gain: Estimate
    chosen: Values | None
    lacking: str = ""

    @property
    def wins(self) -> bool:
        """Whether the gain is certain and large enough."""
        return self.gain.low > 0 and self.gain.value >= MIN_GAIN * self.present


@dataclass(frozen=True)
class Tuning:
    """Results of all heads, and the command that reproduces them."""

    command: str
    corpus_sha256: str
    heads: tuple[TunedHead, ...]

    @property
    def settings(self) -> dict[str, Values]:
        """Settings of the heads for which tuning wins; all others keep the present ones."""
        return {head.name: head.chosen for head in self.heads if head.chosen is not None}

    def as_dict(self) -> dict[str, Any]:
        """Everything for JSON."""
        heads = [{**asdict(head), "gain": head.gain.as_row()} for head in self.heads]
        plain: dict[str, Any] = finite(
            {"command": self.command, "corpus_sha256": self.corpus_sha256, "heads": heads}
        )
        return plain

    def table(self) -> TextTable:
        """One row per head; losses in thousandths of a nat."""
        header = ("head", "groups", "log loss", "tuning removes", "95 % interval", "result")
        title = "held-out log loss in thousandths of a nat, and the part that tuning removes"
        return TextTable(title, header, tuple(map(_row, self.heads)))


def _row(head: TunedHead) -> tuple[str, ...]:
    if head.lacking:
        return (head.name, "-", "-", "-", "-", f"not tuned: {head.lacking}")
    value, low, high = (number * 1e3 for number in head.gain[:3])
    reason = "the interval includes 0" if low <= 0 else f"less than {MIN_GAIN:.0%} of the loss"
    return (
        head.name,
        str(head.groups),
        f"{head.present * 1e3:.0f}",
        f"{value:+.1f}",
        f"{low:+.1f} .. {high:+.1f}",
        "tuned" if head.chosen is not None else f"present settings kept: {reason}",
    )
