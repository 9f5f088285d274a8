"""Who is in the swarm: SWIM with Lifeguard's ideas. No numpy, no torch; its pure part knows no network."""
