"""kiln builds GPU inference images that start warm: pinned, compiled for one GPU, proved and reproducible."""

import os

# Pydantic would read the metadata of every installed package at import, in search of plugins that nobody uses here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
