"""Programs of frameworks as a `make()`: one file each."""
