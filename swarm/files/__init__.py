"""Files that a run brings along, in chunks, so that who joins need not copy them by hand (FORMAT.md, "Attached files")."""
