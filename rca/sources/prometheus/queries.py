"""Read the samples of many metrics: in pieces of bounded size, several at once, as they were scraped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from rca.errors import InvalidInput, TooLarge
from rca.sources.prometheus.answers import TooMuchError
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.promql import MAX_ALTERNATIVES, matcher, selector

#: Queries at the same time: enough to keep a server busy, few enough to leave it to others.
AT_ONCE = 4
#: Samples that one query is planned for, at the interval that exporters are usually scraped at, seconds.
PLANNED_SAMPLES, USUAL_INTERVAL = 300_000, 15.0
#: A query that selects too much is halved down to this span, seconds.
MIN_SECONDS = 30.0
#: Samples and series of one window. A series that two queries read counts twice.
MAX_SAMPLES, MAX_SERIES = 30_000_000, 2_000_000
#: Bounds of a range vector may exclude a sample at its begin; this much earlier includes it, seconds.
RESOLUTION = 0.001
#: Sums are read at this interval or more often, seconds: at least so often in a window.
SUM_INTERVAL, SUMS = 30.0, 32

#: Span of a window unless one is given, and the longest, seconds.
USUAL_SECONDS, MAX_SECONDS = 1800.0, 7 * 86_400.0

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TimeSpan:
    """The time that is read, Unix seconds."""

    start: float
    end: float

    @classmethod
    def of(cls, since: float, start: float | None = None, end: float | None = None) -> TimeSpan:
        """The last `since` seconds before `end`, or from `start` on; it ends now by default.

        Raises
        ------
        InvalidInput
            If it is empty, or longer than `MAX_SECONDS`.
        """
        last = time.time() if end is None else end
        first = last - since if start is None else start
        if last < first:
            raise InvalidInput(
                f"the end of the window lies {first - last:g} s before its start",
                hint="give an --end after --start; without --end, the window ends now",
            )
        if not 0 < last - first <= MAX_SECONDS:
            raise InvalidInput(
                f"the window has {last - first:g} s",
                hint=f"give at most {MAX_SECONDS / 86_400:g} days with --since, or --start and --end",
            )
        return cls(round(first, 3), round(last, 3))


@dataclass(frozen=True)
class Query:
    """Samples of one selector over a span of time.

    Attributes
    ----------
    selector : str
        A PromQL vector selector.
    start, end : float, Unix seconds
        Half open.
    sum_by : tuple of str
        Labels to sum by. Without them the samples are read as they were scraped.
    name : str or None
        Metric name of the sums, which have none.
    interval : float, seconds
        Between two sums.
    """

    selector: str
    start: float
    end: float
    sum_by: tuple[str, ...] = ()
    name: str | None = None
    interval: float = SUM_INTERVAL

    @classmethod
    def of_sums(
        cls, name: str, matchers: Sequence[str], by: tuple[str, ...], start: float, end: float
    ) -> Query:
        """Sums of one metric, such as over the cores of a machine, of which there are many."""
        interval = max(1.0, min(SUM_INTERVAL, (end - start) / SUMS))
        return cls(selector(matcher("__name__", [name]), *matchers), start, end, by, name, interval)

    @property
    def expression(self) -> str:
        span = f"{round(1000 * (self.end - self.start + RESOLUTION))}ms"
        if self.sum_by:
            return (
                f"sum by ({', '.join(self.sum_by)}) ({self.selector})[{span}:{round(1000 * self.interval)}ms]"
            )
        return f"{self.selector}[{span}]"

    def halves(self) -> tuple[Query, Query]:
        middle = round((self.start + self.end) / 2, 3)
        return replace(self, end=middle), replace(self, start=middle)


def read_samples(
    server: Prometheus, queries: Sequence[Query], report: Report, *, max_samples: int = MAX_SAMPLES
) -> list[SeriesMatrix]:
    """Run queries, several at once; a query that selects too much is split by time.

    Parameters
    ----------
    report : callable
        ``report(phase, done, total)``.
    max_samples : int
        Of all queries together.

    Returns
    -------
    list of Matrix
        Ordered by query, then by time.

    Raises
    ------
    TooLarge
        If there are more samples, or a query selects too much even over a short span.
    SourceError
        If the server cannot be reached or answers with something else.
    """
    found: dict[tuple[int, float], SeriesMatrix] = {}
    waiting = deque(enumerate(queries))
    running: dict[Future[SeriesMatrix], tuple[int, Query]] = {}
    total, done, samples, series = len(queries), 0, 0, 0
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="prometheus")
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                number, query = waiting.popleft()
                running[pool.submit(_run, server, query)] = number, query
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                number, query = running.pop(future)
                try:
                    matrix = future.result()
                except TooMuchError as error:
                    waiting.extendleft((number, half) for half in reversed(_split(query, error)))
                    total += 1
                    continue
                found[number, query.start] = matrix
                samples += matrix.time.size
                series += matrix.counts.size
                _refuse_too_many(samples, max_samples, "samples")
                _refuse_too_many(series, MAX_SERIES, "series")
                done += 1
                report("reading from Prometheus", done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [found[key] for key in sorted(found)]


def planned(
    server: Prometheus, names: Sequence[str], matchers: Sequence[str], start: float, end: float
) -> list[Query]:
    """Queries for metrics, each of about `PLANNED_SAMPLES` samples by the number of series."""
    if not names:
        return []
    counted = server.query(f"count by (__name__) ({selector(matcher('__name__', names), *matchers)})", end)
    series = {each["metric"].get("__name__", ""): each["value"] for each in counted}
    limit = max(1.0, PLANNED_SAMPLES * USUAL_INTERVAL / (end - start))
    chunks: list[list[str]] = []
    size = limit
    for name in names:
        # A name that is not counted has ended; it may have as many series as others.
        more = series.get(name, max(series.values(), default=limit))
        if size + more > limit or len(chunks[-1]) >= MAX_ALTERNATIVES:
            chunks.append([])
            size = 0.0
        chunks[-1].append(name)
        size += more
    return [Query(selector(matcher("__name__", chunk), *matchers), start, end) for chunk in chunks]


def _run(server: Prometheus, query: Query) -> SeriesMatrix:
    matrix = server.samples(query.expression, query.start, query.end)
    if query.name is None:
        return matrix
    return replace(matrix, labels=tuple({**labels, "__name__": query.name} for labels in matrix.labels))


def _split(query: Query, error: TooMuchError) -> tuple[Query, Query]:
    if query.end - query.start < 2 * MIN_SECONDS:
        raise TooLarge(
            f"even {query.end - query.start:.0f} s of {query.selector} are too much: {error.reason}",
            hint="select less with --match or --labels; if the server refuses, raise its --query.max-samples",
        )
    return query.halves()


def _refuse_too_many(found: int, limit: int, what: str) -> None:
    if found > limit:
        raise TooLarge(
            f"the job has more than {limit:,} {what} in this time",
            hint="shorten it with --since, or --start and --end; or select less with --match",
        )
