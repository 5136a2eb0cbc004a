"""Checks of phase `after`."""
