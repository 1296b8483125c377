"""What this machine is and does."""
