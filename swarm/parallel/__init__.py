"""Data-parallel fine-tuning: how machines find each other, and how their ranks are started."""
