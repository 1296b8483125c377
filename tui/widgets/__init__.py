"""What the screens are made of. Widgets receive values."""
