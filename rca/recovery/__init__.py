"""What to do about a straggler: actions, their price, and a plan."""
