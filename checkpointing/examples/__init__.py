"""Programs to start from, which the tests run, kill and run again. Imports the face and
`integrations`, and nothing imports it."""
