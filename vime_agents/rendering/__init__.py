"""Messages <-> token ids."""
