"""Checks of phase `container`."""
