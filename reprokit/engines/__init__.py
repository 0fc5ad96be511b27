"""Running the probe side where it is to measure: in another interpreter of this machine, or in a container."""
