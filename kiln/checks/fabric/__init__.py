"""Checks of phase `fabric`."""
