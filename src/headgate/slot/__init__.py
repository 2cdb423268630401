"""One task of an epoch, engine-neutral."""
