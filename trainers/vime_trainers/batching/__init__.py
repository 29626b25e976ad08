"""Training samples -> packed micro-batches: rows, plan, pack. Only `pack` needs torch."""
