"""Checks of phase `numerics`."""
