"""indexes for lists, for the summary of nodes, and for the deletion of old rows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

#: Table, columns and condition of each new index.
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
_OLD: dict[str, tuple[str, list[str]]] = {
    "ix_diagnoses_state": ("diagnoses", ["state"]),
    "ix_diagnoses_failure_mode": ("diagnoses", ["failure_mode"]),
    "ix_diagnoses_cause": ("diagnoses", ["cause"]),
    "ix_blames_node_cause": ("blames", ["node", "cause"]),
    "ix_blames_cause": ("blames", ["cause"]),
}


def upgrade() -> None:
    for name, (table, columns, condition) in _NEW.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    for name, (table, _) in _OLD.items():
        op.drop_index(name, table)


def downgrade() -> None:
    for name, (table, columns) in _OLD.items():
        op.create_index(name, table, columns)
    for name, (table, _, _) in _NEW.items():
        op.drop_index(name, table)
