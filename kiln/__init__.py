"""kiln builds GPU inference images that start warm: pinned, compiled for one GPU, proved and reproducible."""
