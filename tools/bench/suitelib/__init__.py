"""The parts of tools/bench/suite: the peers' programs, long-lived jobs, measuring in turns, and the report."""
