"""Metrics in files: Prometheus' text and answers, OTLP, and what ``nvidia-smi`` and ``dcgmi`` print.

References
----------
Prometheus, "Text-based exposition format" and "HTTP API: range queries".
NVIDIA, ``nvidia-smi --help-query-gpu``.
"""

from __future__ import annotations

import csv
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from rca.errors import InvalidInput, SourceError
from rca.sources.event_windows import small_content
from rca.sources.logs.failure_tables import one_line
from rca.sources.prometheus import otlp
from rca.sources.prometheus.device_dumps import DCGMI_DMON, SMI_QUERY, of_dmon, of_smi_query
from rca.sources.prometheus.exporter_join import with_exporters
from rca.sources.prometheus.job_names import GPU_LABELS, NODE_LABELS
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.metric_table import PlacedMatrix, SeriesPlace, metric_table
from rca.sources.prometheus.signals import level_of
from rca.sources.source import HEAD_BYTES, Source
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.window import Window

#: The begin of each format: text, an answer, and a header of CSV.
_TEXT = re.compile(rb"\A\s*# (?:HELP|TYPE) [a-zA-Z_:]")
_ANSWER = re.compile(rb'\A\s*\{.{0,200}?"resultType"\s*:\s*"(?:matrix|vector)"', re.DOTALL)
_SMI = re.compile(rb"\A[^\n]{0,2000}?\b(?:index|uuid|pci\.bus_id)\b[^\n]{0,2000}")
_SMI_COLUMNS = re.compile(
    rb"\b(?:utilization\.gpu|temperature\.gpu|power\.draw|clocks\.|clocks_|memory\.used|ecc\.errors|pcie\.link)"
)
_ADVICE = "`rca signals` lists the metrics that are used"
#: The names of DCGM's exporter for columns of nvidia-smi, which have the same units.
SMI_NAMES: Mapping[str, str] = {
    "utilization.gpu": "DCGM_FI_DEV_GPU_UTIL",
    "temperature.gpu": "DCGM_FI_DEV_GPU_TEMP",
    "temperature.memory": "DCGM_FI_DEV_MEMORY_TEMP",
    "power.draw": "DCGM_FI_DEV_POWER_USAGE",
    "clocks.sm": "DCGM_FI_DEV_SM_CLOCK",
    "clocks.current.sm": "DCGM_FI_DEV_SM_CLOCK",
    "clocks.mem": "DCGM_FI_DEV_MEM_CLOCK",
    "clocks.current.memory": "DCGM_FI_DEV_MEM_CLOCK",
    "clocks_throttle_reasons.active": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "clocks_event_reasons.active": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "ecc.errors.corrected.volatile.total": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "ecc.errors.uncorrected.volatile.total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "memory.used": "DCGM_FI_DEV_FB_USED",
    "pcie.link.gen.current": "DCGM_FI_DEV_PCIE_LINK_GEN",
    "pcie.link.gen.max": "DCGM_FI_DEV_PCIE_MAX_LINK_GEN",
    "pcie.link.width.current": "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "pcie.link.width.max": "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
}


class _Device(NamedTuple):
    node: str
    gpu: int


_Series = dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]


def is_metrics(head: bytes, _: str) -> bool:
    """Whether a file holds metrics, by its first bytes."""
    known = (_TEXT, _ANSWER, SMI_QUERY, DCGMI_DMON)
    if any(each.match(head) is not None for each in known) or otlp.is_otlp(head):
        return True
    first = head.split(b"\n", 1)[0]
    return b"," in first and _SMI.match(first) is not None and _SMI_COLUMNS.search(first) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read metrics of the machines of one job into a window without steps.

    Returns
    -------
    Window
        Each GPU is a rank, by node and number. Without GPUs, each node is one.

    Raises
    ------
    InvalidInput
        If a file is damaged, or holds no metric that a diagnosis uses.
    """
    series: _Series = {}
    for path in paths:
        for labels, time, value in _samples(path):
            series.setdefault(tuple(sorted(labels.items())), []).append((time, value))
    used = {labels: sorted(held) for labels, held in series.items() if level_of(dict(labels)["__name__"])}
    if not used:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(f"{names}: none of {len(series)} series is used by a diagnosis", hint=_ADVICE)
    rows = [{"metric": dict(labels), "values": held} for labels, held in used.items()]
    matrix = SeriesMatrix.from_result(rows, -np.inf, np.inf)
    devices = sorted({each for each in map(_device, matrix.labels) if each is not None})
    nodes = sorted({each["Hostname"] for each in matrix.labels})
    number = {device: rank for rank, device in enumerate(devices)}
    size = len(devices) or len(nodes)
    if size > MAX_WORLD_SIZE:
        raise InvalidInput(f"{size:,} devices; a job has at most {MAX_WORLD_SIZE:,}")
    table, notes = metric_table([PlacedMatrix.of(matrix, lambda labels: _series_place(labels, number))])
    places: list[dict[str, Any]] = [
        {"rank": rank, "node": device.node, "gpu": device.gpu} for rank, device in enumerate(devices)
    ] or [{"rank": rank, "node": node} for rank, node in enumerate(nodes)]
    time = table.column("time").to_numpy()
    job = {
        "job_id": job_id,
        "world_size": size,
        "ranks": places,
        "start": float(time.min()),
        "end": float(max(np.nextafter(time.max(), np.inf), time.min() + 1.0)),
    }
    window = Window.from_tables(job, metrics=table)
    numbered = "files name no rank: the GPUs are numbered by node and number"
    return replace(window, notes=(*window.notes, *notes, numbered))


def joined(window: Window, metrics: Window, names: str) -> Window:
    """A window with the metrics of the machines, by node and GPU; without steps they may be of others.

    Parameters
    ----------
    names : str
        Of the files of `metrics`, for the note.
    """
    try:
        return with_exporters(window, metrics)
    except InvalidInput as error:
        if window.steps.num_rows:
            raise
        return replace(window, notes=(*window.notes, f"{names} are left out: {error.message}"))


def _series_place(labels: Mapping[str, str], number: Mapping[_Device, int]) -> SeriesPlace:
    device = _device(labels)
    if device is None:
        return SeriesPlace(labels["Hostname"])
    return SeriesPlace(device.node, number[device], str(device.gpu), whole=True)


def _device(labels: Mapping[str, str]) -> _Device | None:
    if level_of(labels["__name__"]) != "device":
        return None
    text = next((labels[name] for name in (*GPU_LABELS, "hw_id") if name in labels), "")
    return _Device(labels["Hostname"], int(text)) if re.fullmatch(r"\d{1,4}", text) else None


def _samples(path: Path) -> Iterator[tuple[dict[str, str], float, float]]:
    """Labels, Unix seconds and value of each sample, with the machine as ``Hostname``."""
    content, written = small_content(path), path.stat().st_mtime
    text, head = content.decode("utf-8-sig", "replace"), content[:HEAD_BYTES]
    form = next((form for begin, form in _FORMS if begin.match(head) is not None), _of_smi)
    found = otlp.samples(content) if otlp.is_otlp(head) else form(text, written)
    try:
        for labels, time, value in found:
            host = next((labels[name] for name in NODE_LABELS if labels.get(name)), path.stem)
            if np.isfinite(time):
                yield {**labels, "Hostname": one_line(host.partition(":")[0]) or path.stem}, time, value
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RecursionError,
        struct.error,
    ) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise InvalidInput(f"{path.name} holds damaged metrics: {reason}", hint=_ADVICE) from None
    except SourceError as error:
        raise InvalidInput(f"{path.name} holds damaged metrics: {error.message}", hint=_ADVICE) from None


def _of_text(text: str, written: float) -> Iterator[tuple[dict[str, str], float, float]]:
    # Its import takes as long as a small diagnosis.
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            time = written if sample.timestamp is None else float(sample.timestamp)
            yield {"__name__": sample.name, **sample.labels}, time, float(sample.value)


def _of_answer(text: str, _: float) -> Iterator[tuple[dict[str, str], float, float]]:
    for each in orjson.loads(text)["data"]["result"]:
        labels = {str(name): str(value) for name, value in each["metric"].items()}
        for time, value in each["values"] if "values" in each else [each["value"]]:
            yield {"__name__": "", **labels}, float(time), float(value)


def _of_smi(text: str, written: float) -> Iterator[tuple[dict[str, str], float, float]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    header = [name.partition(" [")[0].strip() for name in next(rows)]
    for number, row in enumerate(rows):
        held = dict(zip(header, row, strict=False))
        at = _smi_time(held.get("timestamp"), written)
        gpu = held.get("index") or held.get("uuid") or held.get("pci.bus_id") or str(number)
        for column, name in SMI_NAMES.items():
            value = _smi_value(held.get(column, ""))
            if value is not None:
                yield {"__name__": name, "gpu": gpu}, at, value


def _smi_time(text: str | None, written: float) -> float:
    if text is None:
        return written
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return np.nan


def _smi_value(text: str) -> float | None:
    """A value without its unit; None for ``[N/A]`` and other words."""
    word = text.strip().partition(" ")[0]
    try:
        return float(int(word, 16)) if word.startswith("0x") else float(word)
    except ValueError:
        return None


_FORMS = ((_ANSWER, _of_answer), (_TEXT, _of_text), (SMI_QUERY, of_smi_query), (DCGMI_DMON, of_dmon))

SOURCE = Source(
    name="metric-files",
    title="metrics of exporters: Prometheus' text format, answers of `query_range`, OTLP (JSON or "
    "protobuf), `nvidia-smi -q`, `dcgmi dmon`, and CSV of "
    "`nvidia-smi --query-gpu=timestamp,index,... --format=csv`, one file per node",
    tells="which GPU or node differs from the others; with steps in the same folder, why a rank is slow",
    lacks="steps; ranks, which are numbered by node and GPU",
    recognises=is_metrics,
    read=read,
    join=joined,
)
