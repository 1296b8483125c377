"""What this machine's network is: its interfaces and addresses, its ports."""
