"""What has to work before a diagnosis can be made, one check each."""

from __future__ import annotations

from rca_api.compute.pool import ComputePool
from rca_api.health.schemas import Check
from rca_api.store.database import Database, StoreError


def model(pool: ComputePool) -> Check:
    """The champion can be loaded."""
    if pool.failure is not None:
        return Check(name="model", ready=False, detail=pool.failure, code="bundle-error")
    if pool.model is None:
        return Check(name="model", ready=False, detail="it is being loaded", code="not-ready")
    return Check(name="model", ready=True, detail=f"{pool.model.name} {pool.model.version}")


def processes(pool: ComputePool) -> Check:
    """Some process of the pool has got warm; those that are replaced later are not waited for."""
    load = pool.load()
    told = f"{load.warm} of {load.size} processes are warm"
    # A pool whose last process is being replaced is back in a second: callers wait for it.
    if load.warm == 0 and pool.model is None:
        return Check(name="pool", ready=False, detail=told, code="not-ready")
    return Check(name="pool", ready=True, detail=told)


def database(held: Database) -> Check:
    """The database answers, and has the schema that this version needs."""
    try:
        held.check()
    except StoreError as error:
        told = error.message if error.hint is None else f"{error.message} ({error.hint})"
        return Check(name="database", ready=False, detail=told, code="store-unavailable")
    return Check(name="database", ready=True, detail="it answers, and its schema is known")
