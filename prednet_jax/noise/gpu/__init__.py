"""What a GPU would run, read on a machine without one."""
