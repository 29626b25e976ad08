"""New weights into running engines: write or broadcast, load, prove. Start reading at `publisher`."""
