"""Actions of Robusta that use straggler-rca."""
