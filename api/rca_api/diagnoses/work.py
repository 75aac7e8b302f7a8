"""Work on windows in the processes of the pool; see `rca_api.shell.processes.process`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import orjson
import structlog

from rca.classify.uncertainty import AnswerShares
from rca.diagnosis.result import Cause, Diagnosis, ModelVersion
from rca.errors import BundleError, InvalidInput, InvalidWindow, RcaError, SourceError, TooLarge
from rca.window.encodings.json_text import MEMORY_PER_BYTE, parsed_json, uncollected
from rca.window.encodings.multipart import boundary_of, split_parts
from rca.window.memory import WindowCounts, refuse_large
from rca.window.rows.row_errors import shown
from rca.window.schema import Scope
from rca.window.window import Window
from rca_api.diagnoses.history import History
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.decoding import JSON, Limits, Sent, decode_window, media_type
from rca_api.shell.store.window_store import Stored

_log = structlog.stdlib.get_logger("rca_api.diagnoses")
MARKDOWN = "text/markdown"
HTML = "text/html"
MAX_NAME_LENGTH = 256
_BATCH = "windows"
_PART = "window"
#: White space before JSON is searched so far, bytes.
_START = 64


@dataclass(frozen=True)
class StoredWindow:
    """A window in the window store, with the values of its database row."""

    digest: str
    n_bytes: int
    job_id: str
    window_id: str | None
    start: float
    end: float
    world_size: int
    nodes: list[str]


@dataclass(frozen=True)
class BlamedNode:
    """A cause of a diagnosis on one of its nodes, or on none."""

    place: int
    cause: str
    node: str | None
    owner: str
    probability: float
    seconds_per_step: float


@dataclass(frozen=True)
class MetricFacts:
    """Values of a diagnosis that metrics follow over time.

    Attributes
    ----------
    confidence : float
        Probability of the failure mode.
    abstention : str or None
        Code of the reason, if the diagnosis abstained.
    usual : AnswerShares or None
        Shares of the model's answers to held-out windows.
    """

    model: ModelVersion
    confidence: float
    abstention: str | None
    out_of_distribution: bool
    features_outside: tuple[str, ...]
    missing_signals: tuple[str, ...]
    usual: AnswerShares | None


@dataclass(frozen=True)
class DiagnosisAnswer:
    """A finished diagnosis: response, stored document and values of its database rows.

    Attributes
    ----------
    content : bytes
        In the media type of the request.
    document : bytes
        JSON, as it is stored.
    """

    diagnosis_id: str
    content: bytes
    document: bytes
    failure_mode: str
    abstained: bool
    seconds_per_step: float | None
    model_sha256: str
    causes: tuple[str, ...]
    blames: tuple[BlamedNode, ...]
    facts: MetricFacts


def diagnose(
    context: Context, sent: Sent, ref: BundleRef, accept: str, history: History
) -> tuple[StoredWindow, DiagnosisAnswer]:
    """Decode, diagnose and render a posted window; it is stored at the same time."""
    window = decoded(context, sent)
    # Compressing and writing release the interpreter lock, so they run in parallel to the diagnosis.
    with ThreadPoolExecutor(1) as thread:
        storing = thread.submit(context.windows.put, window)
        diagnosis = _diagnosed(context, ref, window, history)
        with context.stage("keep"):
            stored = storing.result()
    return _described(window, stored), _answer(context, diagnosis, accept, window)


def accept_window(context: Context, sent: Sent) -> StoredWindow:
    """Decode and store a posted window that will be diagnosed later."""
    return store(context, decoded(context, sent))


def diagnose_stored(
    context: Context, digest: str, ref: BundleRef, diagnosis_id: str, history: History
) -> DiagnosisAnswer:
    """Diagnose a window of the window store; the diagnosis gets the given id."""
    with context.stage("decode"):
        window = context.windows.get(digest)
        refuse_large(window, context.max_memory_bytes)
    found = _diagnosed(context, ref, window, history)
    return _answer(context, found.model_copy(update={"diagnosis_id": diagnosis_id}), JSON)


def try_bundle(context: Context, ref: BundleRef, digest: str, history: History) -> Diagnosis:
    """Diagnose a stored window with a bundle that does not serve callers."""
    return _with_history(context, ref, context.windows.get(digest), history)


def accept_batch(context: Context, sent: Sent, most: int) -> list[StoredWindow | RcaError]:
    """Split a batch, decode and store each window; an invalid window is an error in the list.

    Raises
    ------
    InvalidInput
        If the batch cannot be read, is empty or has more than `most` windows.
    """
    with context.stage("decompress"):
        body = sent.plain()
    with context.stage("decode"), uncollected():
        return _accepted(context, _split(body, sent, most))


def _accepted(context: Context, windows: list[Callable[[], Window]]) -> list[StoredWindow | RcaError]:
    if not windows:
        raise InvalidInput("the batch has no window")
    accepted: list[StoredWindow | RcaError] = []
    for read in windows:
        try:
            window = read()
            _refuse(window, context)
            accepted.append(store(context, window))
        except InvalidInput as error:
            accepted.append(error)
        except RcaError:
            raise
        except Exception:
            _log.exception("a window of a batch cannot be read")
            accepted.append(RcaError("a window of a batch cannot be read"))
    return accepted


def window_as_json(context: Context, digest: str) -> bytes:
    """A stored window as a JSON document."""
    return context.windows.get(digest, scope="stored").to_json()


def rendered(diagnosis: Diagnosis, accept: str, window: Window | None = None) -> bytes:
    """Write a diagnosis in the media type `accept`; with its window, an HTML page has all pictures."""
    if accept == MARKDOWN:
        return diagnosis.to_markdown().encode()
    if accept == HTML:
        return diagnosis.to_html(window).encode()
    # orjson writes NaN as null, as the format requires.
    return orjson.dumps(diagnosis.to_dict())


def _diagnosed(context: Context, ref: BundleRef, window: Window, history: History) -> Diagnosis:
    with context.stage("diagnose"):
        try:
            context.bundles.prepare(ref)
        except RcaError as error:
            # Callers do not need file names; /readyz has them for the operator.
            raise BundleError("the model bundle cannot be used; /readyz says why") from error
        return _with_history(context, ref, window, history)


def _with_history(context: Context, ref: BundleRef, window: Window, history: History) -> Diagnosis:
    earlier = _earlier(context, window, history)
    odds = history.nodes.excluding(window.job.job_id)
    try:
        return context.bundles.diagnose(ref, window, odds, earlier, history.corrections)
    except InvalidInput:
        if earlier is None:
            raise
        # The earlier window does not fit, for example because the job has another shape now.
        return context.bundles.diagnose(ref, window, odds, corrections=history.corrections)


def _earlier(context: Context, window: Window, history: History) -> Window | None:
    """The job's last healthy window before this one, or None."""
    digest = history.windows.before(window.job)
    if digest is None:
        return None
    try:
        earlier = context.windows.get(digest, max_bytes=_room_for_earlier(window, context))
        refuse_large(window, context.max_memory_bytes, earlier=earlier)
        return earlier
    except TooLarge as error:
        _log.info("the window is not compared with the earlier one", digest=digest, reason=error.message)
        return None
    except SourceError as error:
        # Deleted meanwhile, damaged or out of reach; the diagnosis works without it.
        _log.warning("the earlier window cannot be read", digest=digest, reason=error.message)
        return None


def _room_for_earlier(window: Window, context: Context) -> int | None:
    """Bytes of an earlier window that may be read beside this one; None for no limit."""
    if context.max_memory_bytes is None:
        return None
    return context.max_memory_bytes - WindowCounts.of(window).memory()


def _split(body: bytes, sent: Sent, most: int) -> list[Callable[[], Window]]:
    """One reader per window of a batch: members of a JSON array, or parts of a multipart body."""
    if media_type(sent.content_type) == JSON:
        members = _members(body, sent.limits)
        _refuse_many(len(members), most)
        return [partial(Window.from_document, member) for member in members]
    readers: list[Callable[[], Window]] = []
    for name, content in split_parts(body, boundary_of(body, sent.content_type)):
        if name != _PART:
            raise InvalidInput(f"a batch has parts named {_PART!r}, this one has {shown(name)!r}")
        readers.append(partial(_part, content, sent.limits))
        # Millions of parts are not counted.
        _refuse_many(len(readers), most)
    return readers


def _refuse_many(n_windows: int, most: int) -> None:
    if n_windows > most:
        raise TooLarge(f"the batch has {n_windows:,} windows or more; the limit is {most:,}")


def _part(content: memoryview, limits: Limits) -> Window:
    """Decode a part; the boundary of an Arrow encoding is in its first line."""
    part = bytes(content)
    if part[:_START].lstrip()[:1] == b"{":
        return decode_window(part, JSON, limits)
    return Window.from_arrow(part, None, max_bytes=limits.decoded)


def _members(body: bytes, limits: Limits) -> list[object]:
    try:
        document = parsed_json(body, _BATCH, max_memory=MEMORY_PER_BYTE * limits.json)
    except InvalidWindow as error:
        raise InvalidInput(f"the batch {error.message}", hint=error.hint) from None
    windows = document.get(_BATCH) if isinstance(document, dict) and set(document) == {_BATCH} else None
    if not isinstance(windows, list):
        raise InvalidInput(f'a batch is an object with one member, "{_BATCH}", an array of windows')
    return windows


def decoded(context: Context, sent: Sent, scope: Scope = "window") -> Window:
    """Decompress and decode a posted window; refuse one that cannot be stored or is too large.

    A fragment is not diagnosed by itself, so that its size is no reason.
    """
    with context.stage("decompress"):
        body = sent.plain()
    with context.stage("decode"):
        window = decode_window(body, sent.content_type, sent.limits, scope, sent.job_id)
        if scope == "window":
            _refuse(window, context)
        else:
            _refuse_unstorable_names(window)
    return window


def store(context: Context, window: Window, *, flush: bool = True) -> StoredWindow:
    """Put a window into the window store; durably, unless the caller flushes it."""
    with context.stage("keep"):
        stored = context.windows.put(window) if flush else context.windows.put_unflushed(window)
    return _described(window, stored)


def _described(window: Window, stored: Stored) -> StoredWindow:
    job = window.job
    return StoredWindow(
        digest=stored.digest,
        n_bytes=stored.n_bytes,
        job_id=job.job_id,
        window_id=job.window_id,
        start=job.start,
        end=job.end,
        world_size=job.world_size,
        nodes=sorted(job.topology.node_names),
    )


def _refuse(window: Window, context: Context) -> None:
    """Refuse a window that cannot be stored, or that needs too much memory, before it is stored."""
    refuse_large(window, context.max_memory_bytes)
    _refuse_unstorable_names(window)


def _refuse_unstorable_names(window: Window) -> None:
    """Refuse names that are too long for a database column."""
    job = window.job
    named = [("job_id", job.job_id), ("window_id", job.window_id or "")]
    for field, name in [*named, *(("ranks.node", node) for node in job.topology.node_names)]:
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidWindow(
                "cannot be stored",
                table="job",
                column=field,
                expected=f"at most {MAX_NAME_LENGTH} characters",
            )


def _nodes(cause: Cause, diagnosis: Diagnosis) -> list[str | None]:
    """The nodes that a cause blames; None alone for a cause without nodes, and for one on the whole job."""
    job_nodes = 0 if diagnosis.recovery is None else diagnosis.recovery.job_nodes
    everywhere = 1 < job_nodes <= len(cause.nodes)
    return [None] if everywhere else [*cause.nodes] or [None]


def _answer(
    context: Context, diagnosis: Diagnosis, accept: str, window: Window | None = None
) -> DiagnosisAnswer:
    with context.stage("render"):
        document = rendered(diagnosis, JSON)
        content = document if accept == JSON else rendered(diagnosis, accept, window)
    return DiagnosisAnswer(
        diagnosis_id=diagnosis.diagnosis_id,
        content=content,
        document=document,
        failure_mode=diagnosis.failure_mode,
        abstained=diagnosis.abstained,
        seconds_per_step=diagnosis.slowdown.seconds_per_step,
        model_sha256=diagnosis.model.sha256,
        causes=tuple(cause.cause for cause in diagnosis.causes),
        blames=tuple(
            BlamedNode(
                place, cause.cause, node, cause.owner, cause.probability, cause.seconds_per_step or 0.0
            )
            for place, cause in enumerate(diagnosis.causes, 1)
            for node in _nodes(cause, diagnosis)
        ),
        facts=_facts(context, diagnosis),
    )


def _facts(context: Context, diagnosis: Diagnosis) -> MetricFacts:
    reason, quality = diagnosis.abstention_reason, diagnosis.quality
    return MetricFacts(
        model=diagnosis.model,
        confidence=diagnosis.failure_mode_probability[diagnosis.failure_mode],
        abstention=None if reason is None else reason.code,
        out_of_distribution=bool(quality.out_of_distribution),
        features_outside=tuple(quality.features_outside),
        missing_signals=tuple(diagnosis.missing_signals),
        usual=context.bundles.usual_answers(diagnosis.model.sha256),
    )
