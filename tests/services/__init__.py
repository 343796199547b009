"""Real servers and real faults for the tests, each started in seconds and gone with the tests."""
