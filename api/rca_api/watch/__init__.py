"""Jobs watched from outside: windows are read from Prometheus or folders on time, and diagnosed."""
