"""data sets that are handed out in shards"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "data_shard_sets",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("n_samples", sa.BigInteger(), nullable=False),
        sa.Column("shard_size", sa.BigInteger(), nullable=False),
        sa.Column("n_epochs", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("shuffle", sa.Boolean(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("next_position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_data_shard_sets"),
    )
    op.create_index("ix_data_shard_sets_newest", "data_shard_sets", ["updated_at", "name"])
    op.create_table(
        "returned_data_shards",
        sa.Column("set_name", sa.String(128), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("set_name", "position", name="pk_returned_data_shards"),
        sa.ForeignKeyConstraint(
            ["set_name"],
            ["data_shard_sets.name"],
            name="fk_returned_data_shards_set_name_data_shard_sets",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "data_shard_leases",
        sa.Column("set_name", sa.String(128), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("worker", sa.String(256), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("set_name", "id", name="pk_data_shard_leases"),
        sa.ForeignKeyConstraint(
            ["set_name"],
            ["data_shard_sets.name"],
            name="fk_data_shard_leases_set_name_data_shard_sets",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_data_shard_leases_state", "data_shard_leases", ["set_name", "state", "expires_at"])


def downgrade() -> None:
    op.drop_table("data_shard_leases")
    op.drop_table("returned_data_shards")
    op.drop_table("data_shard_sets")
