"""forms of webhooks: Slack, Alertmanager, PagerDuty"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("form", sa.String(16), nullable=False, server_default="standard"))
    op.add_column("webhooks", sa.Column("routing_key", sa.String(64)))


def downgrade() -> None:
    # Earlier versions would send their own form to these receivers.
    op.execute("UPDATE webhooks SET active = false WHERE form <> 'standard'")
    op.drop_column("webhooks", "routing_key")
    op.drop_column("webhooks", "form")
