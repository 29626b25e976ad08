"""What the sandbox benchmark is made of."""
