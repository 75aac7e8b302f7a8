"""telemetry of jobs, data in shards, taken actions, forms of webhooks, suspected incidents, more indexes

It has the number of the last of nine migrations that were never released, and does what they did.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0002"
branch_labels = None
depends_on = None

#: Table, columns and condition of each new index of an older table.
_NEW: dict[str, tuple[str, list[str], str | None]] = {
    "ix_diagnoses_state_newest": ("diagnoses", ["state", "created_at", "id"], None),
    "ix_diagnoses_failure_mode_newest": ("diagnoses", ["failure_mode", "created_at", "id"], None),
    "ix_diagnoses_abstained_newest": ("diagnoses", ["abstained", "created_at", "id"], None),
    "ix_blames_node_cause_diagnosis": ("blames", ["node", "cause", "diagnosis_id"], None),
    "ix_blames_cause_diagnosis": ("blames", ["cause", "diagnosis_id"], None),
    "ix_incidents_open_newest": ("incidents", ["opened_at", "id"], "open_job_id IS NOT NULL"),
    "ix_incident_events_cause_incident": ("incident_events", ["cause", "incident_id"], None),
    "ix_incident_events_diagnosis_id": ("incident_events", ["diagnosis_id"], None),
    "ix_observations_sick_observed_at": ("observations", ["observed_at"], "verdict = 'sick'"),
    "ix_node_exposures_summary": (
        "node_exposures",
        ["node", "updated_at", "windows", "first_seen", "last_seen"],
        None,
    ),
    "ix_webhook_deliveries_finished_at": ("webhook_deliveries", ["finished_at"], None),
}
#: Each begins as a new one does, or no query uses it.
_OLD = {
    "ix_diagnoses_state": "diagnoses",
    "ix_diagnoses_failure_mode": "diagnoses",
    "ix_diagnoses_cause": "diagnoses",
    "ix_blames_node_cause": "blames",
    "ix_blames_cause": "blames",
}
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    for name, (table, columns, condition) in _NEW.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    for name, table in _OLD.items():
        op.drop_index(name, table)
    _add_columns()
    _create_telemetry()
    _create_data_shards()
    _create_taken_actions()


def _add_columns() -> None:
    op.add_column("webhooks", sa.Column("form", sa.String(16), nullable=False, server_default="standard"))
    op.add_column("webhooks", sa.Column("routing_key", sa.String(64)))
    suspected: sa.Column[bool] = sa.Column(
        "suspected", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("incidents", suspected)
    for table in ("observations", "incidents"):
        op.add_column(table, sa.Column("onset", sa.Double()))
    # A later window of an incident that is open must not become its onset.
    op.execute("UPDATE incidents SET onset = began")
    op.execute(
        "UPDATE observations SET onset = window_start "
        "WHERE incident_id IS NOT NULL AND verdict IN ('sick', 'suspect')"
    )
    # What is queued already comes first.
    op.add_column("diagnoses", sa.Column("turn", sa.BigInteger(), nullable=False, server_default="0"))


def _create_telemetry() -> None:
    op.create_table(
        "streamed_jobs",
        sa.Column("job_id", sa.String(256), primary_key=True),
        sa.Column("begun_by", sa.String(128)),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("usual_seconds", sa.Double()),
        sa.Column("pending", sa.Boolean(), nullable=False),
        sa.Column("looked_at", _MOMENT),
        sa.Column("changed_step", sa.BigInteger()),
        sa.Column("next_step", sa.BigInteger()),
        sa.Column("silent", sa.Boolean(), nullable=False),
        sa.Column("remarks", sa.Text()),
        _key("diagnosis_id", 32, "diagnoses.id", "SET NULL", index=True),
    )
    op.create_index("ix_streamed_jobs_newest", "streamed_jobs", ["updated_at", "job_id"])
    op.create_index("ix_streamed_jobs_caller", "streamed_jobs", ["begun_by", "updated_at"])
    op.create_table(
        "telemetry_segments",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=True),
        _key("job_id", 256, "streamed_jobs.job_id", nullable=False),
        _key("digest", 64, "windows.digest", nullable=False, index=True),
        sa.Column("n_bytes", sa.Integer(), nullable=False),
        sa.Column("begin", sa.Double(), nullable=False),
        sa.Column("end", sa.Double(), nullable=False),
        sa.Column("first_step", sa.BigInteger()),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("received_at", _MOMENT, nullable=False, index=True),
        sa.Column("closed", sa.Boolean(), nullable=False),
    )
    by_digest = ["job_id", "digest"]
    op.create_index("ix_telemetry_segments_job_digest", "telemetry_segments", by_digest, unique=True)
    op.create_index("ix_telemetry_segments_job_end", "telemetry_segments", ["job_id", "end"])


def _create_data_shards() -> None:
    op.create_table(
        "data_shard_sets",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("n_samples", sa.BigInteger(), nullable=False),
        sa.Column("shard_size", sa.BigInteger(), nullable=False),
        sa.Column("n_epochs", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("shuffle", sa.Boolean(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("next_position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_index("ix_data_shard_sets_newest", "data_shard_sets", ["updated_at", "name"])
    op.create_table(
        "returned_data_shards",
        _key("set_name", 128, "data_shard_sets.name", primary_key=True),
        sa.Column("position", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "data_shard_leases",
        _key("set_name", 128, "data_shard_sets.name", primary_key=True),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("worker", sa.String(256), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
    )
    op.create_index("ix_data_shard_leases_state", "data_shard_leases", ["set_name", "state", "expires_at"])


def _create_taken_actions() -> None:
    op.create_table(
        "taken_actions",
        sa.Column("id", sa.String(32), primary_key=True),
        _key("incident_id", 32, "incidents.id", nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False, index=True),
        sa.Column("taken_at", _MOMENT, nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.Column("recorded_by", sa.String(128)),
        sa.Column("recorded_by_name", sa.String(128), nullable=False),
        _key("diagnosis_id", 32, "diagnoses.id", "SET NULL", index=True),
        *(sa.Column(name, sa.Double()) for name in ("predicted", "predicted_low", "predicted_high")),
        sa.Column("one_off_seconds", sa.Double()),
        sa.Column("correction", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        *(sa.Column(name, sa.Double()) for name in ("observed", "observed_low", "observed_high")),
        *(sa.Column(name, sa.Double()) for name in ("lost_before", "lost_after")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("windows_before", "windows_after")),
        sa.UniqueConstraint("incident_id", "key"),
    )
    op.create_index("ix_taken_actions_newest", "taken_actions", ["incident_id", "taken_at", "id"])


def _key(name: str, length: int, of: str, ondelete: str = "CASCADE", **options: Any) -> sa.Column[str]:
    """A column that refers to a row of another table."""
    return sa.Column(name, sa.String(length), sa.ForeignKey(of, ondelete=ondelete), **options)
