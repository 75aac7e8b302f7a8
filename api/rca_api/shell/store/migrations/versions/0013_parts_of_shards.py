"""parts of shards, so that workers share the last ones"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # An older version goes on writing rows without them: then they are whole shards.
    op.add_column("data_shard_leases", sa.Column("stop", sa.BigInteger()))
    op.add_column("returned_data_shards", sa.Column("parts", sa.JSON()))
