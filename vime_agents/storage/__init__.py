"""What is on disk: run directories and episode stores."""
