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
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
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
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
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
        "idempotency_keys",
        sa.Column("caller", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=True),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_idempotency_keys_diagnosis_id_diagnoses"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_diagnosis_id"), ["diagnosis_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_idempotency_keys_expires_at"), ["expires_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_expires_at"))
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_diagnosis_id"))

    op.drop_table("idempotency_keys")
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
    op.drop_table("api_keys")
