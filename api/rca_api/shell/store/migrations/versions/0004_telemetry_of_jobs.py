"""jobs that send telemetry, and its segments"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "streamed_jobs",
        sa.Column("job_id", sa.String(256), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("usual_seconds", sa.Double()),
        sa.Column("pending", sa.Boolean(), nullable=False),
        sa.Column("looked_at", moment),
        sa.Column("changed_step", sa.BigInteger()),
        sa.Column("next_step", sa.BigInteger()),
        sa.Column("silent", sa.Boolean(), nullable=False),
        sa.Column("diagnosis_id", sa.String(32)),
        sa.PrimaryKeyConstraint("job_id", name="pk_streamed_jobs"),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name="fk_streamed_jobs_diagnosis_id_diagnoses",
            ondelete="SET NULL",
        ),
    )
    op.create_index("ix_streamed_jobs_newest", "streamed_jobs", ["updated_at", "job_id"])
    op.create_index("ix_streamed_jobs_diagnosis_id", "streamed_jobs", ["diagnosis_id"])
    op.create_table(
        "telemetry_segments",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(256), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("n_bytes", sa.Integer(), nullable=False),
        sa.Column("begin", sa.Double(), nullable=False),
        sa.Column("end", sa.Double(), nullable=False),
        sa.Column("first_step", sa.BigInteger()),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("received_at", moment, nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_telemetry_segments"),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["streamed_jobs.job_id"],
            name="fk_telemetry_segments_job_id_streamed_jobs",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["digest"],
            ["windows.digest"],
            name="fk_telemetry_segments_digest_windows",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_telemetry_segments_job_digest", "telemetry_segments", ["job_id", "digest"], unique=True
    )
    op.create_index("ix_telemetry_segments_job_end", "telemetry_segments", ["job_id", "end"])
    op.create_index("ix_telemetry_segments_digest", "telemetry_segments", ["digest"])
    op.create_index("ix_telemetry_segments_received_at", "telemetry_segments", ["received_at"])


def downgrade() -> None:
    op.drop_table("telemetry_segments")
    op.drop_table("streamed_jobs")
