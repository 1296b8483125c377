"""The shared store of records and payloads."""
