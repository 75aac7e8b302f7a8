"""actions taken on incidents, with predicted and observed gain"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "taken_actions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("incident_id", sa.String(32), nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("taken_at", moment, nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("recorded_at", moment, nullable=False),
        sa.Column("recorded_by", sa.String(128)),
        sa.Column("recorded_by_name", sa.String(128), nullable=False),
        sa.Column("diagnosis_id", sa.String(32)),
        sa.Column("predicted", sa.Double()),
        sa.Column("predicted_low", sa.Double()),
        sa.Column("predicted_high", sa.Double()),
        sa.Column("one_off_seconds", sa.Double()),
        sa.Column("correction", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("observed", sa.Double()),
        sa.Column("observed_low", sa.Double()),
        sa.Column("observed_high", sa.Double()),
        sa.Column("lost_before", sa.Double()),
        sa.Column("lost_after", sa.Double()),
        sa.Column("windows_before", sa.Integer(), nullable=False),
        sa.Column("windows_after", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_taken_actions"),
        sa.UniqueConstraint("incident_id", "key", name="uq_taken_actions_incident_id"),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name="fk_taken_actions_incident_id_incidents",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name="fk_taken_actions_diagnosis_id_diagnoses",
            ondelete="SET NULL",
        ),
    )
    op.create_index("ix_taken_actions_newest", "taken_actions", ["incident_id", "taken_at", "id"])
    op.create_index("ix_taken_actions_action", "taken_actions", ["action"])
    op.create_index("ix_taken_actions_diagnosis_id", "taken_actions", ["diagnosis_id"])


def downgrade() -> None:
    op.drop_table("taken_actions")
