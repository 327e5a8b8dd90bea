"""What each framework can give back, one file each. None is imported here that the program has not imported already."""
