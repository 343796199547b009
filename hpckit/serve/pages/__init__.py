"""The pages of the web view: pure functions of what was read, but for the files of styles."""
