"""The parts of tools/suite: the peers' programs, jobs that live long, measuring in turns, and what is written about it."""
