"""The actor runtime beside other actor runtimes and beside the floor (../README.md)."""
