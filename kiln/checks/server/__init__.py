"""Checks of phase `server`."""
