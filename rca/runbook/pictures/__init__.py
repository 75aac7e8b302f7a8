"""Pictures of an answer, as SVG inside its HTML page: no script, no font, no file from elsewhere.

They read in grey: shades carry values, thick lines and frames carry the blame.
"""

from __future__ import annotations

from rca.diagnosis.result import Diagnosis
from rca.runbook.pictures.cause_graph import cause_graph
from rca.runbook.pictures.lateness import lateness_pictures
from rca.runbook.pictures.signals import signal_pictures
from rca.runbook.pictures.svg import Picture
from rca.runbook.pictures.waterfall import waterfall
from rca.window.window import Window

__all__ = ["Picture", "pictures_of"]


def pictures_of(diagnosis: Diagnosis, window: Window | None = None) -> tuple[Picture, ...]:
    """The pictures of an answer, in reading order.

    Parameters
    ----------
    window : Window, optional
        The diagnosed window. Without it, there is no picture of lateness and none of signals.
    """
    found = [waterfall(diagnosis)]
    if window is not None:
        found += lateness_pictures(diagnosis, window)
        found += signal_pictures(diagnosis, window)
    found.append(cause_graph(diagnosis))
    return tuple(each for each in found if each is not None)
