"""Audit a built image, a wheel, a folder or a shared object without a GPU. Nothing of the target is ever run."""
