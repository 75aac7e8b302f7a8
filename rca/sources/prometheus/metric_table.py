"""The metrics table of a window, from series with Prometheus' labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.window.schema import METRICS

#: Labels of the scraped target, not of what was measured.
TARGET_LABELS = frozenset(
    {
        "__name__", "instance", "job", "node", "nodename", "kubernetes_node", "Hostname", "hostname",
        "pod", "namespace", "container", "endpoint", "service", "prometheus", "prometheus_replica", "replica",
        "exported_pod", "exported_namespace", "exported_container", "exported_job", "exported_instance",
        "cluster", "uid", "pod_uid", "image", "id", "hpc_job", "err_code", "err_msg",
        "gpu", "GPU", "gpu_id", "GPU_I_ID", "GPU_I_PROFILE", "gpu_partition_id", "UUID", "uuid", "gpu_uuid",
        "gpu_number", "gpu_model", "hw_id", "hw_name", "hw_model", "hw_vendor", "hw_parent", "hw_type",
        "hw_serial_number", "hw_driver_version", "hw_firmware_version", "host_name", "k8s_node_name",
        "k8s_pod_name", "k8s_namespace_name", "k8s_container_name", "service_name", "service_instance_id",
        "modelName", "model_name", "pci_bus_id", "driver_version", "DCGM_FI_DRIVER_VERSION",
    }
)  # fmt: skip
#: Labels that say which device or part is measured, in the order in which they form its name.
DEVICE_LABELS = (
    "device",
    "interface",
    "port",
    "cpu",
    "peer",
    "groupname",
    "nvlink",
    "link",
    "clock_type",
    "mode",
    "ctxswitchtype",
    "kind",
    "hw_gpu_task",
    "gpu_clock_violation",
    "gpu_error_type",
    "gpu_memory_state",
)


@dataclass(frozen=True)
class SeriesPlace:
    """What a series is about.

    Attributes
    ----------
    device : str or None
        First part of the device's name.
    whole : bool
        Whether the label ``device`` repeats it.
    """

    node: str | None
    rank: int | None = None
    device: str | None = None
    whole: bool = False


@dataclass(frozen=True)
class PlacedMatrix:
    """A matrix of series with their places.

    Attributes
    ----------
    places : tuple of SeriesPlace or None
        Of each series of the matrix; None leaves it out.
    """

    matrix: SeriesMatrix
    places: tuple[SeriesPlace | None, ...]

    @classmethod
    def of(
        cls, matrix: SeriesMatrix, place: Callable[[Mapping[str, str]], SeriesPlace | None]
    ) -> PlacedMatrix:
        return cls(matrix, tuple(map(place, matrix.labels)))


def metric_table(parts: Sequence[PlacedMatrix]) -> tuple[pa.Table, list[str]]:
    """One row per sample, and notes on what was left out.

    Two series with one name, place and device, sampled at the same time, are one measurement scraped twice:
    the longer one is kept. Series that follow one another are joined.
    """
    matrix = SeriesMatrix.joined([part.matrix for part in parts])
    places = [place for part in parts for place in part.places]
    devices = _devices(matrix.labels, places)
    kept, twice = _kept(matrix, places, devices)
    rows = np.repeat(kept, matrix.counts)
    notes = [f"{twice} series were scraped twice: one of each was left out"] if twice else []
    lost = sum(place is None for place in places)
    if lost:
        names = sorted(
            {
                labels.get("__name__", "?")
                for labels, place in zip(matrix.labels, places, strict=True)
                if place is None
            }
        )
        more = ", ..." if len(names) > 3 else ""
        notes.append(f"{lost} series belong to no rank or node of the job: {', '.join(names[:3])}{more}")
    if matrix.infinite:
        notes.append(f"{matrix.infinite} samples are infinite: they count as not measured")
    chosen = np.flatnonzero(kept)
    counts = matrix.counts[kept]
    held = [places[row] or SeriesPlace(None) for row in chosen]
    columns = {
        "time": pa.array(matrix.time[rows]),
        "node": _repeated([place.node for place in held], counts),
        "rank": pa.array([place.rank for place in held], type=pa.int32()).take(
            pa.array(np.repeat(np.arange(counts.size), counts))
        ),
        "device": _repeated([devices[row] for row in chosen], counts),
        "name": _repeated([matrix.labels[row].get("__name__", "") for row in chosen], counts),
        "value": pa.array(matrix.value[rows]),
    }
    return pa.table(columns) if chosen.size else METRICS.empty(), notes


def _repeated(texts: Sequence[str | None], counts: IntArray) -> pa.DictionaryArray:
    encoded = pa.array(texts, type=pa.string()).dictionary_encode()
    return encoded.take(pa.array(np.repeat(np.arange(counts.size), counts)))


def _devices(labels: Sequence[Mapping[str, str]], places: Sequence[SeriesPlace | None]) -> list[str | None]:
    """Device of each series: its place's, then its own labels, then others that vary at one place."""
    # Few sets of labels, many series.
    others_of: dict[tuple[str, ...], tuple[str, ...]] = {}
    values: dict[tuple[str, SeriesPlace | None, str], set[str]] = {}
    others: list[tuple[str, ...]] = []
    for each, place in zip(labels, places, strict=True):
        held = tuple(each)
        if held not in others_of:
            others_of[held] = tuple(sorted(set(held) - TARGET_LABELS - set(DEVICE_LABELS)))
        others.append(others_of[held])
        for label in others_of[held]:
            values.setdefault((each["__name__"], place, label), set()).add(each[label])
    found: list[str | None] = []
    for each, place, more in zip(labels, places, others, strict=True):
        extra = [label for label in more if len(values[each["__name__"], place, label]) > 1]
        own = DEVICE_LABELS[1:] if place is not None and place.whole else DEVICE_LABELS
        words = [place.device if place is not None else None]
        words += [each[label] for label in (*own, *extra) if label in each]
        found.append("/".join(word for word in words if word) or None)
    return found


def _kept(
    matrix: SeriesMatrix, places: Sequence[SeriesPlace | None], devices: Sequence[str | None]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
    """Which series are kept, and how many were scraped twice."""
    groups: dict[tuple[str, str | None, int | None, str | None], list[int]] = {}
    for row, place in enumerate(places):
        if place is not None:
            key = matrix.labels[row]["__name__"], place.node, place.rank, devices[row]
            groups.setdefault(key, []).append(row)
    kept = np.zeros(matrix.counts.size, dtype=bool)
    kept[[rows[0] for rows in groups.values() if len(rows) == 1]] = True
    offsets = np.concatenate([[0], np.cumsum(matrix.counts)])
    twice = 0
    for group in groups.values():
        if len(group) == 1:
            continue
        # A series in two parts has the same labels twice.
        series: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for row in group:
            series.setdefault(tuple(sorted(matrix.labels[row].items())), []).append(row)
        spans: list[tuple[float, float]] = []
        for rows in sorted(series.values(), key=lambda rows: -int(matrix.counts[rows].sum())):
            begin = min(matrix.time[offsets[row]] for row in rows)
            end = max(matrix.time[offsets[row + 1] - 1] for row in rows)
            if any(begin <= other_end and end >= other_begin for other_begin, other_end in spans):
                twice += 1
                continue
            spans.append((begin, end))
            kept[rows] = True
    return kept, twice
