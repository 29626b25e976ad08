"""What needs torch: losses, Megatron, weight export and sync, and the loops that Ray places."""
