"""What GitHub's runner reads of a step."""
