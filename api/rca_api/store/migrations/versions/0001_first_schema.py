"""first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "training_runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("active", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("asked_by", sa.String(length=128), nullable=True),
        sa.Column("asked_by_name", sa.String(length=256), nullable=False),
        sa.Column("phase", sa.String(length=128), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problem", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_training_runs")),
        sa.UniqueConstraint("active", name=op.f("uq_training_runs_active")),
    )
    with op.batch_alter_table("training_runs", schema=None) as batch_op:
        batch_op.create_index("ix_training_runs_newest", ["created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_training_runs_state"), ["state"], unique=False)

    op.create_table(
        "windows",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("n_bytes", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_windows")),
    )
    with op.batch_alter_table("windows", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_windows_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_windows_used_at"), ["used_at"], unique=False)

    op.create_table(
        "diagnoses",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("window_digest", sa.String(length=64), nullable=True),
        sa.Column("window_id", sa.String(length=256), nullable=True),
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("window_start", sa.Double(), nullable=False),
        sa.Column("window_end", sa.Double(), nullable=False),
        sa.Column("asked_by", sa.String(length=128), nullable=True),
        sa.Column("failure_mode", sa.String(length=16), nullable=True),
        sa.Column("abstained", sa.Boolean(), nullable=True),
        sa.Column("cause", sa.String(length=64), nullable=True),
        sa.Column("seconds_per_step", sa.Double(), nullable=True),
        sa.Column("model_sha256", sa.String(length=64), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=True),
        sa.Column("problem", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["window_digest"],
            ["windows.digest"],
            name=op.f("fk_diagnoses_window_digest_windows"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_diagnoses")),
    )
    with op.batch_alter_table("diagnoses", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_diagnoses_cause"), ["cause"], unique=False)
        batch_op.create_index(batch_op.f("ix_diagnoses_failure_mode"), ["failure_mode"], unique=False)
        batch_op.create_index("ix_diagnoses_job_newest", ["job_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_diagnoses_newest", ["created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_diagnoses_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_diagnoses_window_digest"), ["window_digest"], unique=False)

    op.create_table(
        "blames",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=256), nullable=True),
        sa.Column("owner", sa.String(length=16), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("seconds_per_step", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_blames_diagnosis_id_diagnoses"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blames")),
    )
    with op.batch_alter_table("blames", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_blames_cause"), ["cause"], unique=False)
        batch_op.create_index(batch_op.f("ix_blames_diagnosis_id"), ["diagnosis_id"], unique=False)
        batch_op.create_index("ix_blames_node_cause", ["node", "cause"], unique=False)

    op.create_table(
        "shadow_comparisons",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("champion_sha256", sa.String(length=64), nullable=False),
        sa.Column("challenger_sha256", sa.String(length=64), nullable=False),
        sa.Column("mode_agrees", sa.Boolean(), nullable=False),
        sa.Column("cause_agrees", sa.Boolean(), nullable=False),
        sa.Column("ranks_agree", sa.Boolean(), nullable=False),
        sa.Column("champion", sa.JSON(), nullable=False),
        sa.Column("challenger", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_shadow_comparisons_diagnosis_id_diagnoses"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shadow_comparisons")),
        sa.UniqueConstraint(
            "diagnosis_id", "challenger_sha256", name=op.f("uq_shadow_comparisons_diagnosis_id")
        ),
    )
    with op.batch_alter_table("shadow_comparisons", schema=None) as batch_op:
        batch_op.create_index("ix_shadow_comparisons_version_newest", ["version", "id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("shadow_comparisons", schema=None) as batch_op:
        batch_op.drop_index("ix_shadow_comparisons_version_newest")

    op.drop_table("shadow_comparisons")
    with op.batch_alter_table("blames", schema=None) as batch_op:
        batch_op.drop_index("ix_blames_node_cause")
        batch_op.drop_index(batch_op.f("ix_blames_diagnosis_id"))
        batch_op.drop_index(batch_op.f("ix_blames_cause"))

    op.drop_table("blames")
    with op.batch_alter_table("diagnoses", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_diagnoses_window_digest"))
        batch_op.drop_index(batch_op.f("ix_diagnoses_state"))
        batch_op.drop_index("ix_diagnoses_newest")
        batch_op.drop_index("ix_diagnoses_job_newest")
        batch_op.drop_index(batch_op.f("ix_diagnoses_failure_mode"))
        batch_op.drop_index(batch_op.f("ix_diagnoses_cause"))

    op.drop_table("diagnoses")
    with op.batch_alter_table("windows", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_windows_used_at"))
        batch_op.drop_index(batch_op.f("ix_windows_job_id"))

    op.drop_table("windows")
    with op.batch_alter_table("training_runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_training_runs_state"))
        batch_op.drop_index("ix_training_runs_newest")

    op.drop_table("training_runs")
