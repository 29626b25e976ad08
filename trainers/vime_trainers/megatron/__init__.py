"""The Megatron backend."""
