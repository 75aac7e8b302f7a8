"""Registered model versions in MLflow with the aliases `challenger`, `champion` and `previous`.

An alias moves in one write of the store. A reader of ``models:/straggler-rca@champion`` sees either the old
champion or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rca.diagnosis.bundle import mark_registered
from rca.errors import BundleError, InvalidInput, SourceError
from rca.lab.training.store_file import store_file
from rca.lab.training.tracking import import_mlflow, open_store
from rca.lab.training.version_files import download, read_text

MODEL = "straggler-rca"
CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"
#: Tags of a version.
SHA256, CORPUS, FEATURES = "bundle.sha256", "corpus.sha256", "feature.version"
#: Id of the order for the training; at most one version has it (`rca.lab.training.run_record.record`).
ORDER = "training.order"
#: The champion before this version; absent if there was none.
PREDECESSOR = "promotion.predecessor"
#: Time of the last request for a version; services that have rejected it then try it again.
REQUESTED = "promotion.asked"
#: Why a version is no longer the champion.
ROLLED_BACK = "rollback.reason"
#: Tag of a run that MLflow shows as its description, and the length that all stores take.
_DESCRIPTION, _MAX_TAG = "mlflow.note.content", 5000
#: Runs per query.
_AT_ONCE = 200


@dataclass(frozen=True)
class RegisteredVersion:
    """One registered bundle.

    Attributes
    ----------
    sha256 : str
        Of the bundle's manifest.
    run_id : str
        Training run it came from.
    scores : dict of str to float
        The run's metrics; empty if `Registry.with_scores` has not read them, or if the run is deleted.
    """

    number: int
    aliases: tuple[str, ...]
    sha256: str
    created: datetime
    run_id: str
    tags: dict[str, str]
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Registry:
    """The versions of `MODEL` in one MLflow store.

    Attributes
    ----------
    uri : str
        MLflow tracking URI.
    """

    uri: str

    @classmethod
    def existing(cls, uri: str) -> Registry:
        """The registry of an existing store; a mistyped path does not create an empty one.

        Raises
        ------
        SourceError
            If the URI names a file that does not exist.
        """
        file = store_file(uri)
        if file is not None and not file.exists():
            raise SourceError(
                "there is no MLflow store at this URI",
                hint="`rca train` makes one; --tracking-uri or MLFLOW_TRACKING_URI names another",
            )
        return cls(uri)

    def versions(self) -> list[RegisteredVersion]:
        """Every version, the newest first, without scores; deleted runs do not matter."""
        with open_store(self.uri):
            client = self.client()
            aliases = self._aliases(client)
            found = client.search_model_versions(f"name = '{MODEL}'") if aliases is not None else []
            made = [_version(each, aliases or {}) for each in found]
        return sorted(made, key=lambda each: -each.number)

    def with_scores(self, found: Sequence[RegisteredVersion]) -> list[RegisteredVersion]:
        """The same versions with the metrics of those runs that still exist."""
        from mlflow.entities import ViewType

        scores: dict[str, dict[str, float]] = {}
        with open_store(self.uri):
            client = self.client()
            experiments = [each.experiment_id for each in client.search_experiments(view_type=ViewType.ALL)]
            for begin in range(0, len(found) if experiments else 0, _AT_ONCE):
                named = ", ".join(f"'{each.run_id}'" for each in found[begin : begin + _AT_ONCE])
                runs = client.search_runs(
                    experiments,
                    f"attributes.run_id IN ({named})",
                    run_view_type=ViewType.ALL,
                    max_results=_AT_ONCE,
                )
                scores |= {run.info.run_id: dict(run.data.metrics) for run in runs}
        return [replace(each, scores=scores.get(each.run_id, {})) for each in found]

    def get(self, name: str) -> RegisteredVersion:
        """The version of a number or an alias.

        Raises
        ------
        InvalidInput
            If there is none.
        """
        found = self.find(name)
        if found is None:
            raise InvalidInput(
                f"no registered version {name!r}", hint="`rca models list` shows versions and aliases"
            )
        return found

    def find(self, name: str) -> RegisteredVersion | None:
        """As `get`, but None if there is none."""
        return _named(self.versions(), name)

    def ordered(self, order: str) -> RegisteredVersion | None:
        """The version of this order."""
        return next((each for each in self.versions() if each.tags.get(ORDER) == order), None)

    def fetch(self, found: RegisteredVersion, folder: Path) -> Path:
        """Copy a version's bundle below `folder`, check the digest of its manifest, and add its number.

        The manifest has the digests of all other files, which are compared when a bundle is loaded.

        Raises
        ------
        BundleError
            If the store holds another bundle, or files that cannot be used.
        """
        with open_store(self.uri), _naming(found):
            source = self.client().get_model_version_download_uri(MODEL, str(found.number))
            bundle = download(source, self.uri, folder, found.sha256)
        mark_registered(bundle, found.number, found.sha256)
        return bundle

    def document(self, found: RegisteredVersion, name: str) -> str:
        """Text of an artifact of the version's run; "" if the run has no such artifact.

        Raises
        ------
        BundleError
            If it cannot be read.
        """
        with open_store(self.uri), _naming(found):
            return read_text(self.client(), found.run_id, name)

    def tag(self, found: RegisteredVersion, tags: Mapping[str, str | None]) -> None:
        """Set tags of a version; None removes a tag."""
        with open_store(self.uri):
            client = self.client()
            for key, value in tags.items():
                if value is not None:
                    client.set_model_version_tag(MODEL, str(found.number), key, value)
                elif key in found.tags:
                    client.delete_model_version_tag(MODEL, str(found.number), key)

    def attach(self, found: RegisteredVersion, name: str, document: dict[str, Any]) -> None:
        """Keep a document as an artifact of the version's run."""
        with open_store(self.uri):
            self.client().log_dict(found.run_id, document, name)

    def describe_run(self, found: RegisteredVersion, text: str, tags: Mapping[str, str]) -> None:
        """Describe and tag the run of a version, for MLflow's pages; a deleted run stays as it is."""
        with open_store(self.uri):
            client = self.client()
            if client.get_run(found.run_id).info.lifecycle_stage == "active":
                for key, value in {_DESCRIPTION: text[:_MAX_TAG], **tags}.items():
                    client.set_tag(found.run_id, key, value)

    def promote(self, found: RegisteredVersion, expected: RegisteredVersion | None) -> None:
        """Make a version the champion and the champion the previous one.

        Parameters
        ----------
        expected : RegisteredVersion or None
            The champion it was compared with.

        Raises
        ------
        InvalidInput
            If the champion has changed.
        """
        champion = self.find(CHAMPION)
        if (champion and champion.number) != (expected and expected.number):
            raise InvalidInput(
                "the champion has changed since the comparison",
                hint="promote again, to compare with the new champion",
            )
        before = None if champion is None else str(champion.number)
        # The predecessor is stored before the champion moves, for a rollback.
        self.tag(found, {PREDECESSOR: before, REQUESTED: datetime.now(UTC).isoformat()})
        with open_store(self.uri):
            client = self.client()
            if before is not None:
                client.set_registered_model_alias(MODEL, PREVIOUS, before)
            client.set_registered_model_alias(MODEL, CHAMPION, str(found.number))
            if CHALLENGER in found.aliases:
                client.delete_registered_model_alias(MODEL, CHALLENGER)

    def request_again(self, found: RegisteredVersion) -> None:
        """Let all services that have rejected a version try it again."""
        self.tag(found, {REQUESTED: datetime.now(UTC).isoformat()})

    def rollback(
        self, reason: str = "", expected: int | None = None
    ) -> tuple[RegisteredVersion, RegisteredVersion | None]:
        """Move the champion back to the version before it.

        Parameters
        ----------
        reason : str
            Kept as a tag of the version that is rolled back.
        expected : int, optional
            The champion to roll back: two requests at once go back one version only.

        Returns
        -------
        (RegisteredVersion, RegisteredVersion or None)
            The old champion and the new one; None if the first champion is rolled back, which leaves the
            shipped bundle.

        Raises
        ------
        InvalidInput
            If there is no champion, or another one than expected.
        """
        held = self.versions()
        champion = _named(held, CHAMPION)
        if champion is None:
            raise InvalidInput("there is no champion to roll back", hint="`rca models promote` makes one")
        if expected not in (None, champion.number):
            raise InvalidInput(f"version {expected} is not the champion; version {champion.number} is")
        target = _named(held, champion.tags.get(PREDECESSOR, ""))
        self.tag(champion, {ROLLED_BACK: reason or "no reason given"})
        with open_store(self.uri):
            client = self.client()
            if target is None:
                client.delete_registered_model_alias(MODEL, CHAMPION)
            else:
                client.set_registered_model_alias(MODEL, CHAMPION, str(target.number))
            before = target and target.tags.get(PREDECESSOR)
            if before:
                client.set_registered_model_alias(MODEL, PREVIOUS, before)
            elif _named(held, PREVIOUS) is not None:
                client.delete_registered_model_alias(MODEL, PREVIOUS)
        return champion, target

    def client(self) -> Any:
        """MLflow's own client of the store."""
        return import_mlflow().MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def _aliases(self, client: Any) -> dict[str, list[str]] | None:
        """Aliases by version number; None if nothing is registered."""
        models = client.search_registered_models(f"name = '{MODEL}'")
        if not models:
            return None
        held: dict[str, list[str]] = {}
        for alias, number in sorted(client.get_registered_model(MODEL).aliases.items()):
            held.setdefault(str(number), []).append(alias)
        return held


@contextmanager
def _naming(found: RegisteredVersion) -> Iterator[None]:
    """Name the version whose files cannot be used."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"version {found.number}: {error.message}") from error


def _named(held: Iterable[RegisteredVersion], name: str) -> RegisteredVersion | None:
    return next((each for each in held if name == str(each.number) or name in each.aliases), None)


def _version(each: Any, aliases: Mapping[str, Iterable[str]]) -> RegisteredVersion:
    tags = dict(each.tags)
    return RegisteredVersion(
        number=int(each.version),
        aliases=tuple(aliases.get(str(each.version), ())),
        sha256=tags.get(SHA256, ""),
        created=datetime.fromtimestamp(each.creation_timestamp / 1000, UTC),
        run_id=each.run_id,
        tags=tags,
    )


def copy_bundle(registry: Registry, found: RegisteredVersion, output: Path) -> None:
    """Copy a version's bundle to a folder, which appears complete or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        registry.fetch(found, Path(folder)).rename(output)
