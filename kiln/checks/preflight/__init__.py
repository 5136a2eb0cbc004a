"""Checks of phase `preflight`."""
