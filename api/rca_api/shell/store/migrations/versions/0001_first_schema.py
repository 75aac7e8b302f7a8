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
        "followed_jobs",
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("decided_end", sa.Double(), nullable=True),
        sa.Column("decided_start", sa.Double(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("advanced_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_followed_jobs")),
    )
    with op.batch_alter_table("followed_jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_followed_jobs_advanced_at"), ["advanced_at"], unique=False)

    op.create_table(
        "incidents",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("open_job_id", sa.String(length=256), nullable=True),
        sa.Column("failure_mode", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resolution", sa.String(length=16), nullable=True),
        sa.Column("began", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=False),
        sa.Column("windows", sa.Integer(), nullable=False),
        sa.Column("seconds_lost", sa.Double(), nullable=False),
        sa.Column("gpu_hours_lost", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        sa.UniqueConstraint("open_job_id", name=op.f("uq_incidents_open_job_id")),
    )
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_incidents_cause"), ["cause"], unique=False)
        batch_op.create_index(batch_op.f("ix_incidents_job_id"), ["job_id"], unique=False)
        batch_op.create_index("ix_incidents_newest", ["opened_at", "id"], unique=False)

    op.create_table(
        "node_exposures",
        sa.Column("node", sa.String(length=256), nullable=False),
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("windows", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", "job_id", name=op.f("pk_node_exposures")),
    )
    with op.batch_alter_table("node_exposures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_node_exposures_updated_at"), ["updated_at"], unique=False)

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
        "webhooks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=True),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("description", sa.String(length=256), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("job_id", sa.String(length=256), nullable=True),
        sa.Column("causes", sa.JSON(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.create_index("ix_webhooks_newest", ["created_at", "id"], unique=False)

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
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=True),
        sa.Column("problem", sa.LargeBinary(), nullable=True),
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
        "webhook_deliveries",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("webhook_id", sa.String(length=32), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("incident_id", sa.String(length=32), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease", sa.String(length=32), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_webhook_deliveries_webhook_id_webhooks"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("id", name=op.f("uq_webhook_deliveries_id")),
    )
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.create_index("ix_webhook_deliveries_queue", ["state", "webhook_id", "number"], unique=False)
        batch_op.create_index(batch_op.f("ix_webhook_deliveries_webhook_id"), ["webhook_id"], unique=False)

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
        "feedback",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("label", sa.JSON(), nullable=False),
        sa.Column("meaning", sa.Text(), nullable=False),
        sa.Column("given_by", sa.String(length=128), nullable=True),
        sa.Column("given_by_name", sa.String(length=128), nullable=False),
        sa.Column("reported_by", sa.String(length=256), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"], ["diagnoses.id"], name=op.f("fk_feedback_diagnosis_id_diagnoses")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
    )
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_feedback_diagnosis_id"), ["diagnosis_id"], unique=False)
        batch_op.create_index("ix_feedback_newest", ["created_at", "id"], unique=False)

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

    op.create_table(
        "incident_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("window_end", sa.Double(), nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=True),
        sa.Column("failure_mode", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=True),
        sa.Column("previous_cause", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_incident_events_diagnosis_id_diagnoses"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name=op.f("fk_incident_events_incident_id_incidents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_events")),
    )
    with op.batch_alter_table("incident_events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_incident_events_incident_id"), ["incident_id"], unique=False)

    op.create_table(
        "observations",
        sa.Column("job_id", sa.String(length=256), nullable=False),
        sa.Column("window_end", sa.Double(), nullable=False),
        sa.Column("window_start", sa.Double(), nullable=False),
        sa.Column("diagnosis_id", sa.String(length=32), nullable=False),
        sa.Column("incident_id", sa.String(length=32), nullable=True),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.String(length=8), nullable=False),
        sa.Column("failure_mode", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=64), nullable=True),
        sa.Column("seconds_lost", sa.Double(), nullable=False),
        sa.Column("gpu_hours_lost", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["diagnosis_id"],
            ["diagnoses.id"],
            name=op.f("fk_observations_diagnosis_id_diagnoses"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name=op.f("fk_observations_incident_id_incidents"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("job_id", "window_end", "window_start", name=op.f("pk_observations")),
    )
    with op.batch_alter_table("observations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_observations_diagnosis_id"), ["diagnosis_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_observations_incident_id"), ["incident_id"], unique=False)

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
    with op.batch_alter_table("observations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_observations_incident_id"))
        batch_op.drop_index(batch_op.f("ix_observations_diagnosis_id"))

    op.drop_table("observations")
    with op.batch_alter_table("incident_events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_incident_events_incident_id"))

    op.drop_table("incident_events")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_expires_at"))
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_diagnosis_id"))

    op.drop_table("idempotency_keys")
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.drop_index("ix_feedback_newest")
        batch_op.drop_index(batch_op.f("ix_feedback_diagnosis_id"))

    op.drop_table("feedback")
    with op.batch_alter_table("blames", schema=None) as batch_op:
        batch_op.drop_index("ix_blames_node_cause")
        batch_op.drop_index(batch_op.f("ix_blames_diagnosis_id"))
        batch_op.drop_index(batch_op.f("ix_blames_cause"))

    op.drop_table("blames")
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_webhook_id"))
        batch_op.drop_index("ix_webhook_deliveries_queue")

    op.drop_table("webhook_deliveries")
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
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.drop_index("ix_webhooks_newest")

    op.drop_table("webhooks")
    with op.batch_alter_table("training_runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_training_runs_state"))
        batch_op.drop_index("ix_training_runs_newest")

    op.drop_table("training_runs")
    with op.batch_alter_table("node_exposures", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_node_exposures_updated_at"))

    op.drop_table("node_exposures")
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.drop_index("ix_incidents_newest")
        batch_op.drop_index(batch_op.f("ix_incidents_job_id"))
        batch_op.drop_index(batch_op.f("ix_incidents_cause"))

    op.drop_table("incidents")
    with op.batch_alter_table("followed_jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_followed_jobs_advanced_at"))

    op.drop_table("followed_jobs")
    op.drop_table("api_keys")
